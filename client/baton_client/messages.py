"""Conversations, tools and tool choices: OpenAI's form, and the wire format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from baton_client import checks, contract
from baton_client.errors import invalid, unsupported
from baton_client.fields import write_scalar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class FunctionCall(TypedDict):
    """The called function; `arguments` is JSON, or its parsed value."""

    name: str
    arguments: NotRequired[str | Mapping[str, Any] | None]


class MessageToolCall(TypedDict):
    """A call of an earlier turn."""

    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionCall


class TextPart(TypedDict):
    """A part of a message's content; other types are not supported."""

    type: Literal["text"]
    text: str


class Message(TypedDict):
    """One message of a conversation; `role` is system, developer, user, assistant or tool."""

    role: str
    #: Text, or parts of text, which are joined by line breaks.
    content: NotRequired[str | Sequence[TextPart] | None]
    name: NotRequired[str | None]
    #: Of the assistant; `Answer.message` has them.
    tool_calls: NotRequired[Sequence[MessageToolCall] | None]
    reasoning_content: NotRequired[str | None]
    #: Of a tool: the id of the call that this answers.
    tool_call_id: NotRequired[str | None]


class Function(TypedDict):
    """A function that the model may call."""

    name: str
    description: NotRequired[str | None]
    #: JSON Schema of type object, parsed or not; without one, it takes no arguments.
    parameters: NotRequired[Mapping[str, Any] | str | None]
    strict: NotRequired[bool | None]


class Tool(TypedDict):
    """A tool that the model may call; only functions are supported."""

    type: Literal["function"]
    function: Function


class NamedFunction(TypedDict):
    """The function that must be called."""

    name: str


class NamedChoice(TypedDict):
    """A choice: the answer is one call of this function."""

    type: NotRequired[Literal["function"]]
    function: NamedFunction


ToolChoice = Literal["auto", "none", "required"] | NamedChoice

#: Types of parts whose text is under the key of the same name; `refusal` is the assistant's.
_TEXT_PARTS = frozenset({"text", "refusal"})
_MODES: dict[str, Any] = {
    "auto": "TOOL_MODE_AUTO",
    "none": "TOOL_MODE_NONE",
    "required": "TOOL_MODE_REQUIRED",
}


def add_message(request: contract.ChatRequest, message: Any, param: str) -> None:
    """Write one message of the conversation; None values are left out.

    Raises:
        InvalidRequestError: a value is of another type; `param` names the place.
        UnsupportedError: its content is not text.
    """
    given = _given(param, message)
    added = request.messages.add(role=checks.text(f"{param}.role", given.pop("role", None)))
    for name, value in given.items():
        where = f"{param}.{name}"
        if name == "content":
            added.content = _content(where, value)
        elif name == "tool_calls":
            for i, call in enumerate(checks.items(where, value)):
                _add_call(added, call, f"{where}[{i}]")
        else:
            write_scalar(added, name, value, param=where)


def _content(param: str, value: Any) -> str:
    """Return a string, or parts of text joined by line breaks, as in the HTTP API."""
    if isinstance(value, str):
        return checks.text(param, value)
    parts = enumerate(checks.items(param, value))
    return "\n".join(_part(f"{param}[{i}]", part) for i, part in parts)


def _part(param: str, value: Any) -> str:
    part = checks.mapping(param, value)
    kind = checks.text(f"{param}.type", part.get("type"))
    if kind not in _TEXT_PARTS:
        message = f"content of type {kind[:64]} is not supported, only text is"
        raise unsupported(f"{param}.type", message)
    return checks.text(f"{param}.{kind}", part.get(kind))


def _add_call(message: contract.ChatMessage, value: Any, param: str) -> None:
    call = checks.mapping(param, value)
    _check_type(param, call.get("type", "function"))
    where = f"{param}.function"
    function = _given(where, call.get("function"))
    message.tool_calls.add(
        id=checks.text(f"{param}.id", call.get("id", "")),
        name=checks.text(f"{where}.name", function.get("name")),
        # Servers accept an empty text as no arguments.
        arguments=checks.json_object(f"{where}.arguments", function.get("arguments", "")),
    )


def write_tools(request: contract.ChatRequest, tools: Any) -> None:
    """Write the tools that the model may call."""
    for i, value in enumerate(checks.items("tools", tools)):
        tool = checks.mapping(f"tools[{i}]", value)
        _check_type(f"tools[{i}]", tool.get("type"))
        where = f"tools[{i}].function"
        function = _given(where, tool.get("function"))
        added = request.tools.add(name=checks.text(f"{where}.name", function.pop("name", None)))
        for name, inner in function.items():
            param = f"{where}.{name}"
            written = checks.json_object(param, inner) if name == "parameters" else inner
            write_scalar(added, name, written, param=param)


def write_tool_choice(request: contract.ChatRequest, choice: Any) -> None:
    """Write the tool choice."""
    if isinstance(choice, str):
        if choice not in _MODES:
            raise invalid("tool_choice", f"it must be one of {', '.join(_MODES)}, or an object")
        request.tool_choice.CopyFrom(contract.ToolChoice(mode=_MODES[choice]))
        return
    named = checks.mapping("tool_choice", choice)
    _check_type("tool_choice", named.get("type", "function"))
    function = checks.mapping("tool_choice.function", named.get("function"))
    name = checks.text("tool_choice.function.name", function.get("name"))
    request.tool_choice.function = name


def write_documents(request: contract.ChatRequest, documents: Any) -> None:
    """Write documents for the chat template."""
    for i, document in enumerate(checks.items("documents", documents)):
        param = f"documents[{i}]"
        request.documents.append(checks.as_json(param, checks.mapping(param, document)))


def write_template_kwargs(request: contract.ChatRequest, kwargs: Any) -> None:
    """Write variables of the chat template."""
    for name, value in checks.mapping("chat_template_kwargs", kwargs).items():
        request.chat_template_kwargs[name] = checks.as_json(f"chat_template_kwargs.{name}", value)


def _check_type(param: str, kind: Any) -> None:
    if kind != "function":
        raise invalid(f"{param}.type", "it must be function")


def _given(param: str, value: Any) -> dict[str, Any]:
    """Return the entries of a mapping without None values."""
    found = checks.mapping(param, value)
    return {name: inner for name, inner in found.items() if inner is not None}
