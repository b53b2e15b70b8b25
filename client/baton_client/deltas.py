"""What answers to a chat mean: text for the user, reasoning, calls of tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the text that the user reads."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of what the model thought before it answered."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallBegin:
    """A call begins. Calls of an answer are numbered from 0 and never overlap."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of a call's arguments."""

    index: int
    text: str


Delta = ContentDelta | ReasoningDelta | ToolCallBegin | ToolCallArguments


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a tool."""

    #: For the message with the tool's answer: its `tool_call_id`.
    id: str
    name: str
    #: JSON as the model wrote it: none if the answer was cut off in the middle of it.
    arguments: str = ""


def content_of(deltas: Iterable[Delta]) -> str:
    """The text that the user reads."""
    return "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))


def reasoning_of(deltas: Iterable[Delta]) -> str:
    """What the model thought."""
    return "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))


def calls_of(deltas: Iterable[Delta]) -> tuple[ToolCall, ...]:
    """The calls, in order."""
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
