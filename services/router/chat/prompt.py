"""From the messages of a conversation, as chat templates take them, to the prompt."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from services.router.chat.json_depth import is_too_deep
from services.router.request.limits import check_texts, texts_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from services.router.request.limits import RequestLimits
    from shared.text.chat_template import ChatTemplate
    from shared.text.tokenizer import Tokenizer


#: Of a call's arguments that templates get as an object.
_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What a chat template is given."""

    messages: Sequence[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None
    #: Further variables of the template.
    extra: Mapping[str, Any] | None = None
    #: Let the model continue the last message instead of starting a new one.
    continue_final_message: bool = False
    #: None: unless the last message is continued.
    add_generation_prompt: bool | None = None


def render_chat(
    conversation: Conversation,
    chat_template: ChatTemplate,
    tokenizer: Tokenizer,
    limits: RequestLimits,
    *,
    add_special_tokens: bool = False,
) -> tuple[str, tuple[int, ...]]:
    """The prompt as text and as tokens. Templates write special tokens themselves, as a rule.

    Raises:
        InvalidRequestError: the template refuses the conversation.
        PayloadTooLargeError: it is too long.
    """
    asked = conversation
    check_texts(texts_in(asked.messages), limits, param="messages")
    if asked.tools:
        check_texts(texts_in(asked.tools), limits, param="tools")
    add_prompt = asked.add_generation_prompt
    text = chat_template.render(
        [_with_reasoning(message) for message in asked.messages],
        tools=asked.tools,
        documents=asked.documents,
        add_generation_prompt=not asked.continue_final_message
        if add_prompt is None
        else add_prompt,
        continue_final_message=asked.continue_final_message,
        extra=asked.extra,
    )
    check_texts([text], limits, param="messages")
    return text, tuple(tokenizer.encode(text, add_special_tokens))


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its reasoning under both names: templates know one or the other."""
    if "reasoning_content" not in message:
        return message
    return {**message, "reasoning": message["reasoning_content"]}


def read_arguments(value: Any) -> Any:
    """The arguments of an earlier call: clients have a string, templates want the object."""
    if not value:
        # What a call without arguments was answered with, by whichever server.
        return {}
    if not isinstance(value, str) or is_too_deep(value.encode(errors="replace"), _MAX_DEPTH):
        return value
    try:
        return json.loads(value)
    except ValueError:
        # A model may have written them; the template shows them as they are.
        return value
