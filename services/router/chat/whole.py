"""Whole answers from a chat's events, for clients that do not stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from services.router.parsers.events import (
    ContentDelta,
    CustomCallBegin,
    Finish,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallBegin,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from services.router.parsers.events import ChatEvent


@dataclass(slots=True)
class WholeCall:
    """A call of a tool. `arguments` is JSON as the model wrote it."""

    id: str
    name: str
    arguments: str = ""
    #: Whether it is of a custom tool: `arguments` is its input, a text.
    is_custom: bool = False


@dataclass(slots=True)
class WholeAnswer:
    """The content of all events of one answer."""

    calls: list[WholeCall] = field(default_factory=list)
    finish: Finish | None = None
    _content: list[str] = field(default_factory=list)
    _reasoning: list[str] = field(default_factory=list)
    #: Arguments of the last call.
    _arguments: list[str] = field(default_factory=list)

    def add(self, events: Iterable[ChatEvent]) -> None:
        """Add the next events."""
        for event in events:
            match event:
                case ContentDelta():
                    self._content.append(event.text)
                case ReasoningDelta():
                    self._reasoning.append(event.text)
                case ToolCallBegin():
                    self.calls.append(
                        WholeCall(
                            event.id, event.name, is_custom=isinstance(event, CustomCallBegin)
                        )
                    )
                    self._arguments = []
                case ToolCallArguments():
                    self._arguments.append(event.text)
                    self.calls[-1].arguments = "".join(self._arguments)
                case Finish():
                    self.finish = event

    @property
    def content(self) -> str:
        """The text for the user."""
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        """The model's reasoning before the answer."""
        return "".join(self._reasoning)
