"""Conversations, tools and what may be called, in OpenAI's shapes, and on the wire."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from baton_client import contract
from baton_client.errors import invalid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class FunctionCall(TypedDict):
    """What is called; `arguments` is JSON."""

    name: str
    arguments: str


class MessageToolCall(TypedDict):
    """A call of an earlier turn."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class Message(TypedDict):
    """One message of a conversation; `role` is system, user, assistant or tool."""

    role: str
    content: NotRequired[str | None]
    name: NotRequired[str]
    #: Of the assistant; `Answer.message` has them.
    tool_calls: NotRequired[Sequence[MessageToolCall]]
    reasoning_content: NotRequired[str]
    #: Of a tool: the call that this answers.
    tool_call_id: NotRequired[str]


class Function(TypedDict):
    """A function that the model may call."""

    name: str
    description: NotRequired[str]
    #: JSON Schema of type object; without one, it takes no arguments.
    parameters: NotRequired[Mapping[str, Any]]
    strict: NotRequired[bool]


class Tool(TypedDict):
    """Something that the model may call; only functions are offered."""

    type: Literal["function"]
    function: Function


class NamedFunction(TypedDict):
    """The function that must be called."""

    name: str


class NamedChoice(TypedDict):
    """The answer is one call of this function."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["auto", "none", "required"] | NamedChoice

_MODES: dict[str, Any] = {
    "auto": "TOOL_MODE_AUTO",
    "none": "TOOL_MODE_NONE",
    "required": "TOOL_MODE_REQUIRED",
}


def add_message(request: contract.ChatRequest, message: Mapping[str, Any]) -> None:
    """Write one message of the conversation; what is None is left out.

    Raises:
        TypeError, ValueError: a value is of another type. protobuf says so.
    """
    fields = {name: value for name, value in message.items() if value is not None}
    calls = fields.pop("tool_calls", ())
    added = request.messages.add(**fields)
    for call in calls:
        function = call["function"]
        added.tool_calls.add(
            id=call.get("id", ""), name=function["name"], arguments=_as_json(function["arguments"])
        )


def write_tools(request: contract.ChatRequest, tools: Sequence[Mapping[str, Any]]) -> None:
    """What the model may call."""
    for tool in tools:
        if tool.get("type") != "function":
            raise invalid("tools", f"a tool must be of type function, not {tool.get('type')!r}")
        function = {name: value for name, value in tool["function"].items() if value is not None}
        if "parameters" in function:
            function["parameters"] = _as_json(function["parameters"])
        request.tools.add(**function)


def write_tool_choice(request: contract.ChatRequest, choice: str | Mapping[str, Any]) -> None:
    """Which of them."""
    if isinstance(choice, str):
        if choice not in _MODES:
            raise invalid("tool_choice", f"it must be one of {', '.join(_MODES)}, or an object")
        request.tool_choice.CopyFrom(contract.ToolChoice(mode=_MODES[choice]))
    else:
        request.tool_choice.function = choice["function"]["name"]


def write_documents(request: contract.ChatRequest, documents: Sequence[Any]) -> None:
    """For the chat template."""
    request.documents.extend(json.dumps(document, ensure_ascii=False) for document in documents)


def write_template_kwargs(request: contract.ChatRequest, kwargs: Mapping[str, Any]) -> None:
    """Variables of the chat template."""
    for name, value in kwargs.items():
        request.chat_template_kwargs[name] = json.dumps(value, ensure_ascii=False)


def _as_json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
