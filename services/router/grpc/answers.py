"""Pieces of answers as wire messages, with parsed deltas where the request asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.v1 import common_pb2, router_pb2
from services.router.answer.stream import new_text
from services.router.grpc.wire import piece_to_wire
from services.router.parsers.answer import TOOL_CALLS
from services.router.parsers.events import (
    ContentDelta,
    Finish,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallBegin,
)
from services.router.request.generation import AnswerPiece

if TYPE_CHECKING:
    from services.router.parsers.events import ChatReader, ParserEvent
    from services.router.request.generation import GenerationRequest
    from shared.text.tokenizer import Tokenizer


class AnswerWriter:
    """Writes the messages of the answers to one request."""

    def __init__(
        self, *, reader: ChatReader | None = None, reading: router_pb2.Reading.ValueType
    ) -> None:
        """Make a writer.

        Without a `reader`, messages have text only: no reasoning, no tool calls.
        """
        self._reader = reader
        self._reading = reading

    def resume(self, request: GenerationRequest, tokenizer: Tokenizer) -> None:
        """Give the reader the text that the client has already: deltas continue after it."""
        if self._reader is None:
            return
        for answer in request.resumed:
            if not answer.finished:
                text = new_text(tokenizer, request.params, request.known_token_ids)
                seen = text.feed(answer.token_ids).text
                self._reader.read(AnswerPiece(index=answer.index, text=seen))

    def write(
        self, request_id: str, piece: AnswerPiece, *, resumed: bool
    ) -> router_pb2.GenerateResponse:
        """Return the message of one piece."""
        message = piece_to_wire(request_id, piece, resumed=resumed)
        message.reading = self._reading
        if self._reader is not None:
            events = self._reader.read(piece)
            for event in events:
                if not isinstance(event, Finish):
                    message.deltas.append(_delta(event))
                elif event.reason == TOOL_CALLS:
                    message.finish_reason = common_pb2.FINISH_REASON_TOOL_CALLS
        return message


def _delta(event: ParserEvent) -> router_pb2.ChatDelta:
    match event:
        case ContentDelta():
            return router_pb2.ChatDelta(content=event.text)
        case ReasoningDelta():
            return router_pb2.ChatDelta(reasoning=event.text)
        case ToolCallBegin():
            call = router_pb2.ToolCallBegin(index=event.index, id=event.id, name=event.name)
            return router_pb2.ChatDelta(call=call)
        case ToolCallArguments():
            arguments = router_pb2.ToolCallArguments(index=event.index, text=event.text)
            return router_pb2.ChatDelta(arguments=arguments)
