"""The Prefill service of a worker whose model reads whole texts: it makes vectors alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baton.v1 import prefill_pb2, prefill_pb2_grpc
from shared.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import grpc

    from services.prefill.pool import PoolCalls

    Context = grpc.aio.ServicerContext[Any, Any]


class ReaderPrefillServicer(prefill_pb2_grpc.PrefillServicer):
    """Knows no `Prefill`: such a model has no KV."""

    def __init__(self, pool: PoolCalls) -> None:
        self._pool = pool

    async def Prefill(  # noqa: N802 the name in the contract
        self, request: prefill_pb2.PrefillRequest, context: Context
    ) -> AsyncIterator[prefill_pb2.PrefillResponse]:
        """Refuse: there is nothing to hand over."""
        raise UnsupportedError("this model reads whole texts: it makes vectors and no KV")
        yield  # type: ignore[unreachable]  # a generator, as in the contract

    async def Pool(  # noqa: N802 the name in the contract
        self, request: prefill_pb2.PoolRequest, context: Context
    ) -> prefill_pb2.PoolResponse:
        """Return the vector of a text."""
        return await self._pool.answer(request, context.time_remaining())
