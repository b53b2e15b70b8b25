"""The answer to a messages request: one object, or a stream of events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from services.router.anthropic import output as out
from services.router.anthropic.errors import error_json
from services.router.openai.replies.responses import Tally, named_event
from services.router.parsers.events import (
    ContentDelta,
    Finish,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallBegin,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Iterator

    from services.router.parsers.events import ChatEvent, ChatReader
    from services.router.request.generation import AnswerPiece

_STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "repetition": "end_turn",
}
_STOP_SEQUENCE = "stop_sequence"


class MessageReply:
    """Builds the reply to one request from the pieces of its answer."""

    #: Nothing follows the last event.
    done = b""

    def __init__(
        self, reader: ChatReader, *, request_id: str, model: str, num_prompt_tokens: int
    ) -> None:
        self._reader = reader
        self._tally = Tally(num_prompt_tokens)
        usage = out.MessageUsage(num_prompt_tokens, 0, 0, 0)
        self._message = out.Message(f"msg_{request_id}", model, (), usage)
        self._blocks = BlockWriter()
        self._has_begun = False

    def event(self, place: int, piece: AnswerPiece) -> bytes:
        """Return the events for one piece; the first event is a message without content."""
        del place  # a message has one prompt
        frames = []
        if not self._has_begun:
            self._has_begun = True
            frames = [named_event(out.MessageStart(self._message)), named_event(out.Ping())]
        frames += map(named_event, self._advance(piece))
        return b"".join(frames)

    def last_event(self) -> bytes:
        """Return the events with the stop reason and the usage."""
        message = self._ended()
        stop = out.StopDelta(message.stop_reason, message.stop_sequence, message.weight_version)
        last = out.MessageDelta(stop, message.usage)
        return named_event(last) + named_event(out.MessageStop())

    def failed(self, error: Exception, *, request_id: str) -> bytes:
        """Return the event that ends a stream with an error."""
        return b"event: error\ndata: %b\n\n" % error_json(error, request_id=request_id)

    async def whole(self, parts: AsyncIterable[tuple[int, AnswerPiece]]) -> out.Message:
        """Return the whole message."""
        async for _, piece in parts:
            for _ in self._advance(piece):
                pass
        return self._ended()

    def _advance(self, piece: AnswerPiece) -> Iterator[msgspec.Struct]:
        self._tally.add(piece)
        if piece.finish_reason is not None:
            self._message.weight_version = piece.weight_version or UNSET
        for event in self._reader.read(piece):
            if not isinstance(event, Finish):
                yield from self._blocks.add(event)
                continue
            yield from self._blocks.close()
            self._message.stop_reason = _STOP_REASONS.get(event.reason)
            if event.reason == "stop" and isinstance(event.stop_reason, str):
                self._message.stop_reason = _STOP_SEQUENCE
                self._message.stop_sequence = event.stop_reason

    def _ended(self) -> out.Message:
        cost = self._tally.final()
        details = cost.prompt_tokens_details
        cached = 0 if details is None else details.cached_tokens
        usage = out.MessageUsage(cost.prompt_tokens - cached, 0, cached, cost.completion_tokens)
        return msgspec.structs.replace(self._message, content=self._blocks.blocks, usage=usage)


class BlockWriter:
    """Builds the blocks of a message. One block is open at a time; another kind closes it."""

    def __init__(self) -> None:
        #: Finished blocks.
        self.blocks: list[out.Block] = []
        self._open: out.Block | None = None
        self._texts: list[str] = []

    def add(self, event: ChatEvent) -> Iterator[msgspec.Struct]:
        """Add one event of the answer; yield the events for the client."""
        match event:
            case ContentDelta(text=text):
                if not isinstance(self._open, out.Text):
                    yield from self._begin(out.Text(""))
                yield self._more(text, out.TextDelta(text))
            case ReasoningDelta(text=text):
                if not isinstance(self._open, out.Thinking):
                    yield from self._begin(out.Thinking(""))
                yield self._more(text, out.ThinkingDelta(text))
            case ToolCallBegin(id=call_id, name=name):
                yield from self._begin(out.ToolUse(call_id, name, {}))
            case ToolCallArguments(text=text) if isinstance(self._open, out.ToolUse):
                yield self._more(text, out.InputJsonDelta(text))

    def close(self) -> Iterator[msgspec.Struct]:
        """Finish the open block, if there is one; yield the events for the client."""
        block, text = self._open, "".join(self._texts)
        if block is None:
            return
        index = len(self.blocks)
        if isinstance(block, out.Text):
            self.blocks.append(out.Text(text))
        elif isinstance(block, out.Thinking):
            self.blocks.append(out.Thinking(text))
            yield out.BlockDelta(index, out.SignatureDelta())
        else:
            self.blocks.append(out.ToolUse(block.id, block.name, read_input(text)))
        self._open = None
        self._texts = []
        yield out.BlockStop(index)

    def _begin(self, block: out.Block) -> Iterator[msgspec.Struct]:
        yield from self.close()
        self._open = block
        yield out.BlockStart(len(self.blocks), block)

    def _more(self, text: str, delta: out.Delta) -> msgspec.Struct:
        self._texts.append(text)
        return out.BlockDelta(len(self.blocks), delta)


def read_input(arguments: str) -> dict[str, object]:
    """Return a tool's input as an object; empty if the model wrote something else."""
    try:
        return msgspec.json.decode(arguments, type=dict[str, object])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}
