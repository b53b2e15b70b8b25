"""Events of the answers to a chat: text, reasoning, tool calls, the end.

The replies of every API over chats are made of these events. They depend on no API and no model
format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.router.request.generation import AnswerPiece


class ContentDelta(msgspec.Struct, frozen=True):
    """A part of the text for the user. Never empty."""

    text: str


class ReasoningDelta(msgspec.Struct, frozen=True):
    """A part of the reasoning before the answer. Never empty."""

    text: str


class ToolCallBegin(msgspec.Struct, frozen=True):
    """The beginning of a call. Calls of an answer are numbered from 0 and never overlap."""

    index: int
    id: str
    name: str


class ToolCallArguments(msgspec.Struct, frozen=True):
    """A part of a call's arguments. Never empty.

    Joined, the parts are a JSON object, unless the answer was cut off or the model wrote something
    else: they are the model's text.
    """

    index: int
    text: str


class CustomCallBegin(ToolCallBegin, frozen=True):
    """The beginning of a call of a custom tool."""


class CustomCallInput(ToolCallArguments, frozen=True):
    """A part of the input of a custom tool: text, and no JSON."""


class Finish(msgspec.Struct, frozen=True):
    """The last event of an answer. `reason` is OpenAI's word: stop, length or tool_calls."""

    reason: str
    #: The stop string or token that ended it, as vLLM reports it.
    stop_reason: str | int | None = None


#: The events that parsers make of text.
ParserEvent = ContentDelta | ReasoningDelta | ToolCallBegin | ToolCallArguments
ChatEvent = ParserEvent | Finish


class AnswerReader(Protocol):
    """Parses one answer. services/router/parsers/answer.py is the implementation."""

    def read(self, piece: AnswerPiece) -> list[ChatEvent]:
        """Return the events of the answer's next piece; may be none. The last event is Finish.

        Never raises, for any text of the model and any cut into pieces.
        """
        ...


class ChatReader:
    """Parses all answers to one chat (n of them), whose pieces are interleaved."""

    def __init__(self, new_reader: Callable[[], AnswerReader]) -> None:
        self._new_reader = new_reader
        self._readers: dict[int, AnswerReader] = {}

    def read(self, piece: AnswerPiece) -> list[ChatEvent]:
        """Return the events of a piece, which belong to the answer `piece.index`."""
        reader = self._readers.get(piece.index)
        if reader is None:
            reader = self._readers[piece.index] = self._new_reader()
        return reader.read(piece)
