"""What the answers to a chat say, event by event: text, reasoning, tool calls, the end.

Every API over chats is written from these. Knows none of them, and no format of any model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.router.request.generation import AnswerPiece


class ContentDelta(msgspec.Struct, frozen=True):
    """More of the text that the user reads. Never empty."""

    text: str


class ReasoningDelta(msgspec.Struct, frozen=True):
    """More of what the model thought before it answered. Never empty."""

    text: str


class ToolCallBegin(msgspec.Struct, frozen=True):
    """A call begins. Calls of an answer are numbered from 0 and never overlap."""

    index: int
    id: str
    name: str


class ToolCallArguments(msgspec.Struct, frozen=True):
    """More of a call's arguments. Together they are a JSON object, unless the answer was cut off
    or the model wrote none: they are what it wrote. Never empty.
    """

    index: int
    text: str


class Finish(msgspec.Struct, frozen=True):
    """The answer's last event. `reason` is OpenAI's word: stop, length or tool_calls."""

    reason: str
    #: The stop string or token that ended it, as vLLM reports it.
    stop_reason: str | int | None = None


#: What parsers make of text.
ParserEvent = ContentDelta | ReasoningDelta | ToolCallBegin | ToolCallArguments
ChatEvent = ParserEvent | Finish


class AnswerReader(Protocol):
    """Reads one answer. services/router/parsers/answer.py is the real one."""

    def read(self, piece: AnswerPiece) -> list[ChatEvent]:
        """The events of the answer's next piece; perhaps none. The last piece gives Finish, last.

        Never raises, whatever the model wrote, and however it was cut into pieces.
        """
        ...


class ChatReader:
    """Reads all answers to one chat (n of them), which come interleaved."""

    def __init__(self, new_reader: Callable[[], AnswerReader]) -> None:
        self._new_reader = new_reader
        self._readers: dict[int, AnswerReader] = {}

    def read(self, piece: AnswerPiece) -> list[ChatEvent]:
        """The events of a piece. They belong to the answer `piece.index`."""
        reader = self._readers.get(piece.index)
        if reader is None:
            reader = self._readers[piece.index] = self._new_reader()
        return reader.read(piece)
