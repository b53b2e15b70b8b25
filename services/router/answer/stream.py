"""One answer: the decode worker's messages, converted to pieces of text."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from baton.v1 import decode_pb2
from services.router.answer.cost import AnswerCost
from services.router.answer.pin import written_by
from services.router.answer.wire import prompt_details, token_detail
from services.router.request.generation import AnswerPiece
from services.router.request.resume import PARAM
from services.router.routing.learn import learn_decode, learn_prefill
from services.router.workers.pieces import PlainPiece, is_full, merged
from shared.aside import aside
from shared.directory.generations import identity_of
from shared.errors import BatonError, InvalidRequestError
from shared.request.answer import num_candidates
from shared.request.repetition import repeats_as, text_end
from shared.request.wire import finish_reason_from_wire
from shared.text.answer_text import AnswerText

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from services.router.request.outlet import Outlet
    from services.router.routing.base import Route
    from services.router.routing.book import Book, Booking
    from services.router.routing.hashes import BlockHashes
    from services.router.workers.pieces import Piece
    from services.router.workers.sessions import AnswerCall, SessionPool, Take
    from shared.generation.params import GenerationParams
    from shared.request.answer import FinishReason
    from shared.telemetry.tracing import Span
    from shared.text.answer_text import TextPiece
    from shared.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Arguments of one call to a decode worker for one answer."""

    route: Route
    book: Book
    sessions: SessionPool
    request: decode_pb2.DecodeRequest
    timeout_s: float
    #: Hashes of the prompt's blocks, for the book; empty if routing does not use them.
    block_hashes: BlockHashes = field(default_factory=dict)
    #: The worker has the prompt's KV already, from another answer.
    follows: bool = False
    #: Span of this call alone, ended by `pieces`. None unless the router traces.
    span: Span | None = None


class AnswerStream:
    """Text, tokens and cost of one answer, over all workers that it uses.

    A worker that resumes the answer continues after `token_ids`, and so do the pieces.
    """

    def __init__(
        self,
        index: int,
        *,
        tokenizer: Tokenizer,
        params: GenerationParams,
        prompt_ids: Sequence[int],
        emitted: Sequence[int] = (),
    ) -> None:
        """Begin after the tokens `emitted`. The client has their text, which is not sent again.

        Raises:
            InvalidRequestError: a stop string ends the answer within them.
        """
        self.index = index
        self._tokenizer = tokenizer
        self._text = new_text(tokenizer, params, prompt_ids)
        self.cost = AnswerCost()
        #: Worker of the last call.
        self.route: Route | None = None
        #: The call that runs.
        self._running: AnswerCall | None = None
        #: All tokens from workers, in order.
        self.token_ids = list(emitted)
        if emitted and (end := self._text.feed(emitted)).has_ended:
            what = "a repetition" if end.repeats else "a stop string"
            message = f"{PARAM}: answer {index} has ended already, with {what}"
            raise InvalidRequestError(message, param=PARAM)

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer so far."""
        return self._text.num_tokens

    def abort(self) -> None:
        """End the answer with what has arrived, if it runs."""
        if self._running is not None:
            self._running.abort()

    async def pieces(
        self, call: Call, outlet: Outlet | None = None
    ) -> AsyncGenerator[AnswerPiece, None]:
        """Yield the worker's output as pieces; the last one has a finish reason.

        All output since the last read is one piece. Closing the iterator cancels the answer. The
        first piece from a worker is yielded, and so are all until the answer has tokens; later
        plain ones go to the outlet while it is open.

        Raises:
            BatonError: the worker's error; WorkerLostError if the worker is gone.
        """
        route = self.route = call.route
        identity = written_by(identity_of(route.decode.record), call.request.adapter.digest)
        booking = self._booked(call)
        answer = call.sessions.start(
            route.decode.record.address,
            call.request,
            timeout_s=call.timeout_s,
            peer=str(route.decode),
        )
        self._running = answer
        passage = _Passage(self, booking, outlet)
        take: Take | None = None
        try:
            while True:
                for news in _merged(await answer.read(take)):
                    piece = passage.last or await self._made(news)
                    if identity:
                        piece = msgspec.structs.replace(piece, identity=identity)
                        identity = ""
                    booking.add_tokens(len(piece.token_ids))
                    if piece.finish_reason is not None:
                        version = route.decode.record.weight_version
                        piece = msgspec.structs.replace(piece, weight_version=version)
                        self._learn(call, booking)
                    yield piece
                    if piece.finish_reason is not None:
                        return
                take = passage.taker
        except BatonError as error:
            if call.span is not None:
                call.span.fail(error)
            raise
        finally:
            self._running = None
            answer.cancel()
            booking.release()
            if call.span is not None:
                call.span.end()

    def _booked(self, call: Call) -> Booking:
        num_tokens = len(call.request.token_ids)
        adapter = call.request.adapter.digest if call.request.HasField("adapter") else b""
        max_itl_ms = call.request.max_itl_ms or None
        if call.follows:
            return call.book.begin_follower(
                call.route, num_prompt_tokens=num_tokens, adapter=adapter, max_itl_ms=max_itl_ms
            )
        return call.book.begin(
            call.route,
            num_prompt_tokens=num_tokens,
            block_hashes=call.block_hashes,
            waits_apart=_waits_apart(call),
            adapter=adapter,
            max_itl_ms=max_itl_ms,
        )

    def _learn(self, call: Call, booking: Booking) -> None:
        """Update the workers' profiles from the usage and timings of the answer's last piece."""
        usage, timings = self.cost.usage(), self.cost.timings()
        if usage is None or timings is None or call.request.num_resumed_tokens:
            return
        if not call.follows:
            learn_prefill(
                call.route,
                usage,
                timings,
                num_beside=booking.num_beside,
                answer_tokens=call.book.answer_tokens,
            )
        # The time of a slow grammar or of a load does not show the worker's step time.
        if usage.completion_tokens == self.num_tokens and not _waits_apart(call):
            learn_decode(call.route, booking, timings, num_output_tokens=self.num_tokens)

    async def _made(self, news: Piece) -> AnswerPiece:
        if isinstance(news, PlainPiece):
            return self.plain_piece(news.token_ids)
        if not news.HasField("prompt_logprobs"):
            return self._piece(news)
        # The answer has no tokens yet: nothing is given to the outlet meanwhile.
        size = num_candidates(news.prompt_logprobs.positions)
        return await aside(size, partial(self._piece, news))

    def plain_piece(self, plain_ids: Sequence[int]) -> AnswerPiece:
        """Return the piece of nearly all steps; `_piece` makes the same of a message."""
        self.cost.note_arrival()
        token_ids = tuple(plain_ids)
        self.token_ids += token_ids
        text = self._text.feed(token_ids)
        if not text.has_ended:
            return AnswerPiece(index=self.index, text=text.text, token_ids=token_ids)
        return self._rich_piece(decode_pb2.DecodeResponse(), token_ids, text, None)

    def _piece(self, message: decode_pb2.DecodeResponse) -> AnswerPiece:
        self.cost.note(message)
        token_ids = tuple(message.token_ids)
        self.token_ids += token_ids
        reason = finish_reason_from_wire(message.finish_reason)
        stop_token_id = message.stop_token_id if message.HasField("stop_token_id") else None
        text = self._text.feed(token_ids, final=reason is not None, stop_token_id=stop_token_id)
        return self._rich_piece(message, token_ids, text, reason)

    def _rich_piece(
        self,
        message: decode_pb2.DecodeResponse,
        token_ids: tuple[int, ...],
        text: TextPiece,
        reason: FinishReason | None,
    ) -> AnswerPiece:
        stop_token_id = message.stop_token_id if message.HasField("stop_token_id") else None
        stop_string = None
        if (end := text_end(text)) is not None:
            (reason, stop_string), stop_token_id = end, None
        details = message.logprobs[: text.num_tokens]
        return AnswerPiece(
            index=self.index,
            text=text.text,
            token_ids=token_ids[: text.num_tokens],
            details=tuple(token_detail(self._tokenizer, position) for position in details),
            hidden_states=tuple(message.hidden_states[: text.num_tokens]),
            finish_reason=reason,
            stop_string=stop_string,
            stop_token_id=self._tokenizer.stop_reason(stop_token_id),
            prompt_details=(
                prompt_details(self._tokenizer, message.prompt_logprobs)
                if message.HasField("prompt_logprobs")
                else None
            ),
        )


class _Passage:
    """The way of one call's plain pieces to an outlet."""

    __slots__ = ("_booking", "_outlet", "_stream", "last")

    def __init__(self, stream: AnswerStream, booking: Booking, outlet: Outlet | None) -> None:
        self._stream = stream
        self._booking = booking
        self._outlet = outlet
        #: The piece with which the text has ended. It is to be yielded.
        self.last: AnswerPiece | None = None

    @property
    def taker(self) -> Take | None:
        """What to offer plain tokens to; None until the answer has tokens, or without an outlet."""
        return self._take if self._outlet is not None and self._stream.token_ids else None

    def _take(self, token_ids: Sequence[int]) -> bool:
        outlet = self._outlet
        if outlet is None or not outlet.is_open():
            return False
        piece = self._stream.plain_piece(token_ids)
        if piece.finish_reason is not None:
            self.last = piece
            return False
        self._booking.add_tokens(len(token_ids))
        outlet.give(piece)
        return True


def _waits_apart(call: Call) -> bool:
    """Return whether the request may have to wait for something while others are computed."""
    return call.request.sampling.HasField("grammar") or call.route.estimate.adapter_ms > 0


def new_text(
    tokenizer: Tokenizer, params: GenerationParams, prompt_ids: Sequence[int]
) -> AnswerText:
    """Return the converter of one answer's tokens to text."""
    return AnswerText(
        tokenizer,
        prompt_ids=prompt_ids,
        stop=params.stop,
        include_stop_str_in_output=params.include_stop_str_in_output,
        min_tokens=params.min_tokens,
        skip_special_tokens=params.skip_special_tokens,
        spaces_between_special_tokens=params.spaces_between_special_tokens,
        shown_token_ids=params.shown_token_ids,
        repeats=repeats_as(params.repetition_detection),
    )


def _merged(pieces: Sequence[Piece]) -> list[Piece]:
    """Return the pieces since the last read as one, or as several that are full."""
    found = [pieces[0]]
    for piece in pieces[1:]:
        if is_full(found[-1].hidden_states):
            found.append(piece)
        else:
            found[-1] = merged(found[-1], piece)
    return found
