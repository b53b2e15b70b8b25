"""One answer: a call to the decode worker, turned into pieces of text."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import grpc

from baton.v1 import decode_pb2, decode_pb2_grpc
from services.router.endpoint import Booking
from services.router.generation import AnswerPiece
from services.router.wire import finish_reason_from_wire, prompt_details, token_detail
from shared.engine.events import FinishReason
from shared.errors import BatonError, RequestCancelledError, WorkerLostError
from shared.rpc.status import from_rpc_error
from shared.text.answer_text import AnswerText

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from baton.v1 import common_pb2
    from services.router.generation import GenerationParams
    from services.router.routing.base import Route
    from shared.text.tokenizer import Tokenizer


#: How long a worker may take from its last piece to the end of the call.
FINISH_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What it takes to ask a decode worker for one answer."""

    route: Route
    channel: grpc.aio.Channel
    request: decode_pb2.DecodeRequest
    timeout_s: float


class AnswerStream:
    """Reads one answer. After it, `usage` and `timings` are what the worker said, if it did."""

    def __init__(
        self,
        index: int,
        *,
        tokenizer: Tokenizer,
        params: GenerationParams,
        prompt_ids: Sequence[int],
    ) -> None:
        self.index = index
        self._tokenizer = tokenizer
        self._text = AnswerText(
            tokenizer,
            prompt_ids=prompt_ids,
            stop=params.stop,
            include_stop_str_in_output=params.include_stop_str_in_output,
            min_tokens=params.min_tokens,
            skip_special_tokens=params.skip_special_tokens,
        )
        self.usage: common_pb2.Usage | None = None
        self.timings: common_pb2.Timings | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer so far."""
        return self._text.num_tokens

    async def pieces(self, call: Call) -> AsyncGenerator[AnswerPiece, None]:
        """One piece per message of the worker; the last one has a finish reason.

        Closing the iterator cancels the call.

        Raises:
            BatonError: what the worker answered, or WorkerLostError if it did not.
        """
        route = call.route
        first_prefill = route.prefill[0] if route.prefill else None
        booking = Booking(route.decode, first_prefill, len(call.request.token_ids))
        stub = decode_pb2_grpc.DecodeStub(call.channel)
        stream = stub.Generate(call.request, timeout=call.timeout_s)
        ended_by_worker = False
        try:
            while (read := await stream.read()) is not grpc.aio.EOF:
                message = cast("decode_pb2.DecodeResponse", read)
                piece = self._piece(message)
                booking.add_tokens(len(piece.token_ids))
                ended_by_worker = bool(message.finish_reason)
                yield piece
                if piece.finish_reason is not None:
                    return
            raise WorkerLostError(f"{route.decode} ended its answer without a finish reason")
        except grpc.RpcError as error:
            raise _meaning(error, call) from error
        finally:
            try:
                if ended_by_worker:
                    await _let_finish(stream)
            finally:
                stream.cancel()
                booking.release()

    def _piece(self, message: decode_pb2.DecodeResponse) -> AnswerPiece:
        if message.HasField("usage"):
            self.usage = message.usage
        if message.HasField("timings"):
            self.timings = message.timings
        reason = finish_reason_from_wire(message.finish_reason)
        stop_token_id = message.stop_token_id if message.HasField("stop_token_id") else None
        text = self._text.feed(
            message.token_ids, final=reason is not None, stop_token_id=stop_token_id
        )
        if text.stop_string is not None:
            reason, stop_token_id = FinishReason.STOP, None
        details = message.logprobs[: text.num_tokens]
        return AnswerPiece(
            index=self.index,
            text=text.text,
            token_ids=tuple(message.token_ids[: text.num_tokens]),
            details=tuple(token_detail(self._tokenizer, position) for position in details),
            finish_reason=reason,
            stop_string=text.stop_string,
            stop_token_id=stop_token_id,
            prompt_details=(
                prompt_details(self._tokenizer, message.prompt_logprobs)
                if message.HasField("prompt_logprobs")
                else None
            ),
        )


async def _let_finish(stream: Any) -> None:
    """The worker is done and only has to say so: cancelling now would disturb its clean-up."""
    with suppress(grpc.RpcError, TimeoutError):
        async with asyncio.timeout(FINISH_S):
            await stream.read()


def _meaning(error: grpc.RpcError, call: Call) -> BatonError:
    meant = from_rpc_error(error, peer=str(call.route.decode))
    if isinstance(meant, RequestCancelledError):
        # Not by us, or nobody would be reading: the worker is being shut down.
        return WorkerLostError(str(meant))
    return meant
