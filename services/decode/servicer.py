"""The Decode service: one answer per call, or many in a session."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import grpc
from structlog.contextvars import bind_contextvars

from baton.v1 import decode_pb2, decode_pb2_grpc
from services.decode.session import AnswerSession
from services.decode.tracing import begin_span, trace_account
from shared.errors import BatonError
from shared.worker.pump import pumped

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from services.decode.answer import DecodeCall
    from services.decode.metrics import DecodeMetrics
    from shared.telemetry.tracing import Span, Tracer
    from shared.worker.health.gate import RequestGate

Context = grpc.aio.ServicerContext[object, object]


class DecodeServicer(decode_pb2_grpc.DecodeServicer):
    """The call is the lease: when it ends, for whatever reason, its blocks are free again."""

    def __init__(
        self,
        *,
        answer: Callable[[decode_pb2.DecodeRequest, Span | None], DecodeCall],
        gate: RequestGate,
        metrics: DecodeMetrics,
        tracer: Tracer | None,
    ) -> None:
        """With a `tracer` answers have spans."""
        self._answer = answer
        self._gate = gate
        self._metrics = metrics
        self._tracer = tracer

    async def Generate(  # noqa: N802 the name in the contract
        self, request: decode_pb2.DecodeRequest, context: Context
    ) -> AsyncIterator[decode_pb2.DecodeResponse]:
        """Stream the answer. Cancelling the call cancels the prefill worker's too."""
        async with aclosing(pumped(self._answers(request))) as pieces:
            async for piece in pieces:
                yield piece

    async def Session(  # noqa: N802 the name in the contract
        self, request_iterator: AsyncIterator[decode_pb2.SessionRequest], context: Context
    ) -> AsyncIterator[decode_pb2.SessionResponse]:
        """Stream many answers. When the call ends, all of them are cancelled.

        It ends behind the last one when the gate is over.
        """
        async with aclosing(self._session().run(request_iterator)) as responses:
            async for response in responses:
                yield response

    def _session(self) -> AnswerSession:
        return AnswerSession(self._answers, over=self._gate.over)

    async def _answers(
        self, request: decode_pb2.DecodeRequest
    ) -> AsyncGenerator[decode_pb2.DecodeResponse, None]:
        # Each answer is made in a task of its own, with which this context ends.
        bind_contextvars(request_id=request.request_id)
        span = None if self._tracer is None else begin_span(self._tracer, request)
        try:
            async with self._gate.enter():
                answer = self._answer(request, span)
                try:
                    async with aclosing(answer.run()) as pieces:
                        async for piece in pieces:
                            yield piece
                finally:
                    self._metrics.observe(answer.account)
                    if span is not None:
                        trace_account(span, answer.account)
        except BatonError as error:
            if span is not None:
                span.fail(error)
            raise
        finally:
            if span is not None:
                span.end()
