"""Calls of custom tools: their input as text, from the arguments that the model writes.

A model is shown a custom tool as a function with one text, so it writes `{"input": "…"}`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from services.router.parsers.events import (
    CustomCallBegin,
    CustomCallInput,
    ToolCallArguments,
    ToolCallBegin,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from services.router.parsers.events import AnswerReader, ChatEvent
    from services.router.request.generation import AnswerPiece

_HEAD = re.compile(r'\s*\{\s*"input"\s*:\s*"')
#: A part of a JSON string: plain characters, a pair of surrogates, an escape, or its end.
_PART = re.compile(
    r'(?P<plain>[^"\\]+)|(?P<pair>\\u[dD][89abAB]..\\u[dD][c-fC-F]..)'
    r'|(?P<escape>\\(?:u(?![dD][89abAB])[0-9a-fA-F]{4}|[^u]))|(?P<end>")'
)
#: The longest part that may be incomplete: a pair of surrogates.
_PAIR_CHARS = 12


class InputDecoder:
    """Decodes the text of `{"input": "…"}` as it arrives.

    Arguments of another form are the input as they are: a model may write the bare text.
    """

    def __init__(self) -> None:
        #: All arguments, until their beginning is known; then what is not decoded yet.
        self._held = ""
        self._is_inside = False
        self._has_ended = False

    def feed(self, text: str) -> str:
        """Return the input that became known."""
        if self._has_ended:
            return ""
        self._held += text
        if not self._is_inside:
            head = _HEAD.match(self._held)
            if head is None:
                return ""
            self._is_inside = True
            self._held = self._held[head.end() :]
        return self._decoded()

    def finish(self) -> str:
        """Return the rest, at the end of the call."""
        if self._is_inside or not self._held:
            return ""
        try:
            return msgspec.json.decode(self._held, type=_Arguments).input
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return self._held

    def _decoded(self) -> str:
        texts: list[str] = []
        at = 0
        while (part := _PART.match(self._held, at)) is not None:
            if part["end"] is not None:
                self._has_ended = True
                self._held = ""
                return "".join(texts)
            texts.append(_text(part))
            at = part.end()
        self._held = self._held[at:]
        if len(self._held) >= _PAIR_CHARS:
            # Half of a pair, or no escape at all: as the model wrote it.
            texts.append(self._held[0])
            self._held = self._held[1:]
            return "".join(texts) + self._decoded()
        return "".join(texts)


class _Arguments(msgspec.Struct):
    input: str


class CustomCalls:
    """Parses one answer, with the calls of custom tools as such. See AnswerReader."""

    def __init__(self, reader: AnswerReader, names: Collection[str]) -> None:
        self._reader = reader
        self._names = names
        #: The custom call that is open, and its number.
        self._open: tuple[int, InputDecoder] | None = None

    def read(self, piece: AnswerPiece) -> list[ChatEvent]:
        """See AnswerReader."""
        events: list[ChatEvent] = []
        for event in self._reader.read(piece):
            self._take(event, events)
        return events

    def _take(self, event: ChatEvent, events: list[ChatEvent]) -> None:
        if isinstance(event, ToolCallArguments) and self._open is not None:
            index, decoder = self._open
            if text := decoder.feed(event.text):
                events.append(CustomCallInput(index, text))
            return
        self._close(events)
        if isinstance(event, ToolCallBegin) and event.name in self._names:
            self._open = (event.index, InputDecoder())
            event = CustomCallBegin(event.index, event.id, event.name)
        events.append(event)

    def _close(self, events: list[ChatEvent]) -> None:
        if self._open is None:
            return
        index, decoder = self._open
        self._open = None
        if text := decoder.finish():
            events.append(CustomCallInput(index, text))


def _text(part: re.Match[str]) -> str:
    if part["plain"] is not None:
        return part["plain"]
    try:
        return msgspec.json.decode(f'"{part[0]}"', type=str)
    except msgspec.MsgspecError:
        return part[0]
