"""The parsed content of answers to a chat: text for the user, reasoning, tool calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """A part of the text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A part of the model's reasoning before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallBegin:
    """The beginning of a call. Calls of an answer are numbered from 0 and never overlap."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """A part of a call's arguments."""

    index: int
    text: str


Delta = ContentDelta | ReasoningDelta | ToolCallBegin | ToolCallArguments


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a tool."""

    #: For the message with the tool's result: its `tool_call_id`.
    id: str
    name: str
    #: JSON as the model wrote it; incomplete if the answer was cut off in it.
    arguments: str = ""


def content_of(deltas: Iterable[Delta]) -> str:
    """Return the text for the user."""
    return "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))


def reasoning_of(deltas: Iterable[Delta]) -> str:
    """Return the model's reasoning."""
    return "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))


def calls_of(deltas: Iterable[Delta]) -> tuple[ToolCall, ...]:
    """Return the calls, in order."""
    begun: dict[int, ToolCallBegin] = {}
    arguments: dict[int, list[str]] = {}
    for delta in deltas:
        match delta:
            case ToolCallBegin():
                begun[delta.index] = delta
                arguments[delta.index] = []
            case ToolCallArguments() if delta.index in begun:
                arguments[delta.index].append(delta.text)
    return tuple(
        ToolCall(id=call.id, name=call.name, arguments="".join(arguments[index]))
        for index, call in sorted(begun.items())
    )
