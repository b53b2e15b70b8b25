"""Chat messages in the form of chat templates, and the prompt that is rendered from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from services.router.chat.prompt import Conversation, render_chat
from services.router.chat.rules import needs_content
from services.router.openai.errors import FieldError
from services.router.openai.reading.embeds_parts import PART, EmbedsParts
from services.router.openai.reading.prompts import Prompt
from services.router.parsers.base import INPUT
from services.router.request.embeds_policy import NO_EMBEDS
from shared.errors import UnsupportedError
from shared.generation.limits import check_num_messages
from shared.text.call_arguments import read_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.openai.reading.prompts import Prompt
    from services.router.openai.schema.chat import ChatMessage, ChatPromptFields
    from services.router.request.embeds_policy import EmbedsPolicy
    from shared.generation.limits import RequestLimits
    from shared.text.chat_template import ChatTemplate
    from shared.text.tokenizer import Tokenizer

#: Types of parts whose text is under the key of the same name.
_TEXT_PARTS = frozenset({"text", "refusal"})


def encode_chat(
    fields: ChatPromptFields,
    chat_template: ChatTemplate,
    tokenizer: Tokenizer,
    limits: RequestLimits,
    *,
    tools: list[dict[str, Any]] | None,
    add_special_tokens: bool,
    embeds: EmbedsPolicy = NO_EMBEDS,
) -> Prompt:
    """Render the conversation and turn it into tokens. `embeds`: whether parts may be embeddings.

    Most templates write special tokens themselves, so `add_special_tokens` is usually false.

    Raises:
        InvalidRequestError: the messages are wrong, or the template refuses them.
        PayloadTooLargeError: they are too long.
    """
    check_num_messages(len(fields.messages), limits)
    parts = EmbedsParts(embeds)
    conversation = Conversation(
        messages=template_messages(fields.messages, parts),
        tools=tools,
        documents=fields.documents,
        extra=_template_variables(fields),
        continue_final_message=bool(fields.continue_final_message),
        add_generation_prompt=fields.add_generation_prompt,
    )
    text, token_ids = render_chat(
        conversation,
        chat_template,
        parts.tokenizer(tokenizer),
        limits,
        add_special_tokens=add_special_tokens,
    )
    return parts.placed(text, token_ids, tokenizer)


def _template_variables(fields: ChatPromptFields) -> dict[str, Any] | None:
    """Return the template's variables. A field of its own has precedence over the general one."""
    if fields.reasoning_effort is None:
        return fields.chat_template_kwargs
    return {
        **(fields.chat_template_kwargs or {}),
        "reasoning_effort": fields.reasoning_effort,
    }


def answer_role(fields: ChatPromptFields, usual: str) -> str:
    """Return the role of the answer: the usual one, or the author of a continued message."""
    if fields.add_generation_prompt or not fields.continue_final_message:
        return usual
    return fields.messages[-1].role


def echoed_text(fields: ChatPromptFields, role: str, *, echo: bool | None) -> str:
    """Return the continued message's text if `echo` asks for it; otherwise empty.

    `role`: that of the answer.
    """
    last = fields.messages[-1]
    if not echo or last.role != role:
        return ""
    return read_content(last.content, param="messages") or ""


def template_messages(
    messages: Sequence[ChatMessage], parts: EmbedsParts | None = None
) -> list[dict[str, Any]]:
    """Return the messages with their text as one string each. `parts` takes what is no text."""
    return [_template_message(m, f"messages[{i}]", parts) for i, m in enumerate(messages)]


def read_content(content: Any, *, param: str, parts: EmbedsParts | None = None) -> str | None:
    """Return the text of a message: a string, or parts of type text, joined by line breaks.

    `parts` takes those that are embeddings.

    Raises:
        FieldError: it is neither.
        UnsupportedError: a part is not text.
    """
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        message = f"{param} must be a string or a list of parts"
        raise FieldError(message, param=param, code="invalid_type")
    return "\n".join(_read_part(part, f"{param}[{i}]", parts) for i, part in enumerate(content))


def _read_part(part: Any, param: str, parts: EmbedsParts | None) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        message = f"{param} must be an object with a type"
        raise FieldError(message, param=param, code="invalid_type")
    kind = part["type"]
    if kind == PART and parts is not None:
        return parts.read(part, param)
    if kind not in _TEXT_PARTS:
        message = f"content of type {kind[:64]} is not supported, only text is"
        raise UnsupportedError(message, param=f"{param}.type")
    if not isinstance(part.get(kind), str):
        message = f"{param}.{kind} must be a string"
        raise FieldError(message, param=f"{param}.{kind}", code="invalid_type")
    return str(part[kind])


def _template_message(
    message: ChatMessage, param: str, parts: EmbedsParts | None
) -> dict[str, Any]:
    content = read_content(message.content, param=f"{param}.content", parts=parts)
    calls = message.tool_calls
    if content is None and needs_content(message.role, calls_tools=bool(calls)):
        problem = f"{param}.content must be a string or a list of parts"
        raise FieldError(problem, param=f"{param}.content", code="missing_required_parameter")
    rendered: dict[str, Any] = {"role": message.role, "content": content or ""}
    if message.name is not None:
        rendered["name"] = message.name
    if message.tool_call_id is not None:
        rendered["tool_call_id"] = message.tool_call_id
    reasoning = message.reasoning_content if message.reasoning is None else message.reasoning
    if message.role == "assistant" and reasoning is not None:
        rendered["reasoning_content"] = reasoning
    if calls:
        rendered["tool_calls"] = _read_tool_calls(calls, f"{param}.tool_calls")
    return rendered


def _read_tool_calls(calls: Any, param: str) -> list[dict[str, Any]]:
    """Return earlier calls with their arguments as objects, as templates need them."""
    if not isinstance(calls, list):
        raise FieldError(f"{param} must be a list", param=param, code="invalid_type")
    return [_read_tool_call(call, f"{param}[{i}]") for i, call in enumerate(calls)]


def _read_tool_call(call: Any, param: str) -> dict[str, Any]:
    if isinstance(call, dict) and call.get("type") == "custom":
        return _read_custom_call(call, param)
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        message = f"{param}.function must be an object"
        raise FieldError(message, param=f"{param}.function", code="invalid_type")
    if not isinstance(function.get("name"), str):
        message = f"{param}.function.name must be a string"
        raise FieldError(message, param=f"{param}.function.name", code="invalid_type")
    arguments = read_arguments(function.get("arguments"))
    return {"type": "function", **call, "function": {**function, "arguments": arguments}}


def _read_custom_call(call: dict[str, Any], param: str) -> dict[str, Any]:
    """Return an earlier call of a custom tool as the call of a function, as the model wrote it."""
    given = call.get("custom")
    custom = given if isinstance(given, dict) else {}
    for name in ("name", "input"):
        if not isinstance(custom.get(name), str):
            message = f"{param}.custom.{name} must be a string"
            raise FieldError(message, param=f"{param}.custom.{name}", code="invalid_type")
    function = {"name": custom["name"], "arguments": {INPUT: custom["input"]}}
    kept = {name: value for name, value in call.items() if name != "custom"}
    return {**kept, "type": "function", "function": function}
