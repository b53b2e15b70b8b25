"""The Decode service: one call is one answer."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import grpc

from baton.v1 import decode_pb2, decode_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from services.decode.answer import Answer
    from services.decode.metrics import DecodeMetrics
    from shared.worker.gate import RequestGate

Context = grpc.aio.ServicerContext[object, object]


class DecodeServicer(decode_pb2_grpc.DecodeServicer):
    """The call is the lease: when it ends, for whatever reason, its blocks are free again."""

    def __init__(
        self,
        *,
        answer: Callable[[decode_pb2.DecodeRequest], Answer],
        gate: RequestGate,
        metrics: DecodeMetrics,
    ) -> None:
        self._answer = answer
        self._gate = gate
        self._metrics = metrics

    async def Generate(  # noqa: N802 the name in the contract
        self, request: decode_pb2.DecodeRequest, context: Context
    ) -> AsyncIterator[decode_pb2.DecodeResponse]:
        """Stream the answer. Cancelling the call cancels the prefill worker's too."""
        with self._gate.enter():
            answer = self._answer(request)
            try:
                async with aclosing(answer.run()) as pieces:
                    async for piece in pieces:
                        yield piece
            finally:
                self._metrics.observe(answer.account)
