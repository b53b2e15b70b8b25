"""Parser of one answer: reasoning first, then tool calls in the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.parsers.events import (
    ContentDelta,
    Finish,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallBegin,
)
from shared.request.answer import FinishReason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from services.router.parsers.base import TextParser
    from services.router.parsers.events import ChatEvent, ParserEvent
    from services.router.request.generation import AnswerPiece

TOOL_CALLS = "tool_calls"


class TextAnswerReader:
    """Parses the text of one answer to events: reasoning, tool calls, content.

    Without parsers all of the text is content.
    """

    def __init__(
        self,
        *,
        reasoning: TextParser | None = None,
        tools: TextParser | None = None,
        include_reasoning: bool = True,
        parallel: bool = True,
    ) -> None:
        """Read with these parsers.

        Without `include_reasoning` the reasoning is dropped; without `parallel`, calls after the
        first.
        """
        self._reasoning = reasoning
        self._tools = tools
        self._include_reasoning = include_reasoning
        self._parallel = parallel
        self._num_calls = 0

    def read(self, piece: AnswerPiece) -> list[ChatEvent]:
        """See AnswerReader."""
        events: list[ChatEvent] = []
        self._keep(self._parsed(piece.text), events)
        if piece.finish_reason is not None:
            self._keep(self._rest(), events)
            events.append(self._finish(piece, piece.finish_reason))
        return events

    def _parsed(self, text: str) -> list[ParserEvent]:
        if not text:
            return []
        if self._reasoning is None:
            return self._called(text)
        return self._routed(self._reasoning.feed(text))

    def _rest(self) -> list[ParserEvent]:
        events: list[ParserEvent] = []
        if self._reasoning is not None:
            events += self._routed(self._reasoning.finish())
        if self._tools is not None:
            events += self._tools.finish()
        return events

    def _routed(self, events: Iterable[ParserEvent]) -> list[ParserEvent]:
        """Pass content on to the tool parser. Reasoning is not searched for calls."""
        parsed: list[ParserEvent] = []
        for event in events:
            if isinstance(event, ContentDelta):
                parsed += self._called(event.text)
            else:
                parsed.append(event)
        return parsed

    def _called(self, text: str) -> list[ParserEvent]:
        return [ContentDelta(text)] if self._tools is None else self._tools.feed(text)

    def _keep(self, events: Iterable[ParserEvent], kept: list[ChatEvent]) -> None:
        for event in events:
            if isinstance(event, ReasoningDelta) and not self._include_reasoning:
                continue
            if isinstance(event, ToolCallBegin):
                self._num_calls = event.index + 1
            is_call = isinstance(event, ToolCallBegin | ToolCallArguments)
            if is_call and not self._parallel and self._num_calls > 1:
                continue
            kept.append(event)

    def _finish(self, piece: AnswerPiece, reason: FinishReason) -> Finish:
        stop = piece.stop_token_id if piece.stop_string is None else piece.stop_string
        called = self._num_calls > 0 and reason is FinishReason.STOP
        return Finish(TOOL_CALLS if called else reason.value, stop)
