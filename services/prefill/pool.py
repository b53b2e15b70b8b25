"""One vector: the call of `Prefill.Pool`, from its message to its numbers."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING

import numpy as np
from structlog.contextvars import bind_contextvars

from baton.v1 import common_pb2, prefill_pb2
from services.prefill.metrics import PrefillOutcome
from shared.errors import BatonError, DeadlineError, InternalError, UnsupportedError
from shared.pooling.base import PoolRequest
from shared.pooling.wire import task_from_wire
from shared.request.adapter_ref import adapter_from_wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from services.prefill.metrics import PoolMetrics
    from shared.pooling.base import Pooled, Pooler
    from shared.request.adapter_ref import AdapterRef
    from shared.worker.adapters import WorkerAdapters
    from shared.worker.health.gate import RequestGate

#: The longest time of a call whose caller names none.
LONGEST_S = 600.0


class PoolCalls:
    """Answers calls for vectors. Ending a call frees all that its request holds."""

    def __init__(
        self,
        pooler: Pooler | None,
        gate: RequestGate,
        metrics: PoolMetrics,
        *,
        model: str,
        adapters: WorkerAdapters | None = None,
    ) -> None:
        """`pooler`: None if `model` makes no vectors. `adapters`: None if it can have none."""
        self._pooler = pooler
        self._gate = gate
        self._metrics = metrics
        self._model = model
        self._adapters = adapters

    async def answer(
        self, request: prefill_pb2.PoolRequest, timeout_s: float | None
    ) -> prefill_pb2.PoolResponse:
        """Return the vector within `timeout_s`.

        Raises:
            UnsupportedError: the model makes none.
            InvalidRequestError: the text can never be served; `param` names the field.
            AdapterNotLoadedError: its adapter is not here, and cannot be loaded.
            DeadlineError: there is none in time.
            InternalError: some of its numbers are not finite.
        """
        bind_contextvars(request_id=request.request_id)
        arrived_s = time.monotonic()
        async with self._counted(), self._gate.enter():
            pooler = self._pooler
            if pooler is None:
                raise UnsupportedError(
                    f"{self._model} makes no vectors: start its prefill workers with "
                    "--convert embed, or serve an embedding model",
                    param="model",
                )
            pooled = await self._pool(pooler, request, timeout_s or LONGEST_S)
            pool_s = time.monotonic() - arrived_s
            self._metrics.succeeded(len(request.token_ids), pooled.num_cached_tokens, pool_s)
            return prefill_pb2.PoolResponse(
                vector=_vector(request, pooled),
                cached_tokens=pooled.num_cached_tokens,
                pool_ms=pool_s * 1e3,
            )

    async def _pool(
        self, pooler: Pooler, request: prefill_pb2.PoolRequest, timeout_s: float
    ) -> Pooled:
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                asked = _read(request)
                async with self._held(asked.adapter):
                    return await pooler.pool(asked)
        except TimeoutError as error:
            if not limit.expired():
                raise
            message = f"request {request.request_id}: no vector within {timeout_s:.1f} s"
            raise DeadlineError(message) from error

    def _held(self, adapter: AdapterRef | None) -> AbstractAsyncContextManager[None]:
        """Keep the adapter known. Without adapters, the pooler refuses it."""
        return nullcontext() if self._adapters is None else self._adapters.held(adapter)

    @asynccontextmanager
    async def _counted(self) -> AsyncIterator[None]:
        outcome = PrefillOutcome.CANCELLED
        try:
            yield
            outcome = PrefillOutcome.OK
        except InternalError:
            outcome = PrefillOutcome.FAILED
            raise
        except BatonError:
            outcome = PrefillOutcome.REFUSED
            raise
        finally:
            self._metrics.count(outcome)


def _read(request: prefill_pb2.PoolRequest) -> PoolRequest:
    types = tuple(request.token_type_ids)
    return PoolRequest(
        request_id=request.request_id,
        token_ids=tuple(request.token_ids),
        task=task_from_wire(request.task),
        token_type_ids=types or None,
        normalize=request.normalize if request.HasField("normalize") else None,
        dimensions=request.dimensions if request.HasField("dimensions") else None,
        activate=request.activate if request.HasField("activate") else None,
        priority=request.priority,
        cache_salt=request.cache_salt,
        adapter=adapter_from_wire(request.adapter) if request.HasField("adapter") else None,
    )


def _vector(request: prefill_pb2.PoolRequest, pooled: Pooled) -> common_pb2.Vector:
    numbers = pooled.data.numpy().astype(np.float32, copy=False)
    if not np.isfinite(numbers).all():
        message = f"request {request.request_id}: numbers of its vector are not finite"
        raise InternalError(message)
    if sys.byteorder == "big":
        numbers = numbers.byteswap()
    num_rows = len(numbers) if numbers.ndim > 1 else 1
    return common_pb2.Vector(data=numbers.tobytes(), num_rows=num_rows)
