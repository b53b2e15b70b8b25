"""Rendering of a conversation's messages, in the form of chat templates, to the prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.generation.limits import check_texts, texts_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shared.generation.limits import RequestLimits
    from shared.text.chat_template import ChatTemplate
    from shared.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """The input of a chat template."""

    messages: Sequence[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None
    #: Other variables of the template.
    extra: Mapping[str, Any] | None = None
    #: Whether the model continues the last message instead of starting a new one.
    continue_final_message: bool = False
    #: None: true unless the last message is continued.
    add_generation_prompt: bool | None = None


def render_chat(
    conversation: Conversation,
    chat_template: ChatTemplate,
    tokenizer: Tokenizer,
    limits: RequestLimits,
    *,
    add_special_tokens: bool = False,
) -> tuple[str, tuple[int, ...]]:
    """Return the prompt as text and as tokens. Most templates write special tokens themselves.

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
    """Return the message with its reasoning under both names: a template knows one of them."""
    if "reasoning_content" not in message:
        return message
    return {**message, "reasoning": message["reasoning_content"]}
