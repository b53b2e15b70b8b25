"""Messages of a program's conversation, in the form of chat templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shared.errors import InvalidRequestError, UnsupportedError
from shared.text.call_arguments import read_arguments


def template_messages(
    messages: Sequence[Mapping[str, Any]], *, keeps_parts: bool = False
) -> list[dict[str, Any]]:
    """Return the messages with each text as one string, and arguments of calls as objects.

    `keeps_parts`: the template reads parts itself.

    Raises:
        InvalidRequestError: a part is wrong.
        UnsupportedError: it is no text.
    """
    return [
        _message(message, f"messages[{i}]", keeps_parts=keeps_parts)
        for i, message in enumerate(messages)
    ]


def _message(message: Mapping[str, Any], param: str, *, keeps_parts: bool) -> dict[str, Any]:
    read = dict(message)
    content = read.get("content")
    if isinstance(content, list | tuple):
        texts = [_text(part, f"{param}.content[{i}]") for i, part in enumerate(content)]
        read["content"] = (
            [{"type": "text", "text": text} for text in texts] if keeps_parts else "\n".join(texts)
        )
    calls = read.get("tool_calls")
    if isinstance(calls, list | tuple):
        read["tool_calls"] = [_call(call) for call in calls]
    return read


def _text(part: Any, param: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind is None:
        raise InvalidRequestError(f"{param} must be an object with a type", param=param)
    if kind != "text":
        message = f"content of type {kind!r:.64} is not supported, only text is"
        raise UnsupportedError(message, param=f"{param}.type")
    if not isinstance(part.get("text"), str):
        raise InvalidRequestError(f"{param}.text must be a string", param=f"{param}.text")
    return str(part["text"])


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or "arguments" not in function:
        return call
    arguments = read_arguments(function["arguments"])
    return {**call, "function": {**function, "arguments": arguments}}
