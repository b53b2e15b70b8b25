"""Vectors of a decoder: prompts in the steps of an engine, beside those that generate."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import torch

from shared.engine.prompt_rows import PromptRows
from shared.engine.sequence.events import Failed, NewTokens, PromptStates
from shared.engine.sequence.request import EngineRequest
from shared.errors import BatonError, InternalError, RequestCancelledError
from shared.pooling.base import Pooled, PoolingKind
from shared.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from torch import Tensor

    from shared.engine.thread.engine_thread import EngineThread
    from shared.pooling.base import PoolingFacts, PoolRequest
    from shared.pooling.head import Head

_ROWS = {
    PoolingKind.LAST: PromptRows.LAST,
    PoolingKind.CLS: PromptRows.FIRST,
    PoolingKind.MEAN: PromptRows.SUM,
    None: PromptRows.ALL,
}
#: Rows that are finished on the event loop; more of them take a thread of their own.
_FEW_ROWS = 4


class EnginePooler:
    """See `Pooler`. The engine is its maker's, who starts and stops it."""

    def __init__(self, engine: EngineThread, head: Head) -> None:
        self._engine = engine
        self._head = head
        #: Aborts that the engine has still to take.
        self._aborts: set[asyncio.Task[None]] = set()

    @property
    def facts(self) -> PoolingFacts:
        """See `Pooler.facts`."""
        return self._head.facts

    async def pool(self, request: PoolRequest) -> Pooled:
        """See `Pooler.pool`."""
        self._head.check(request)
        kind = self._head.kind_of(request.task)
        stream = await self._engine.submit(engine_request(request, kind))
        async for event in stream:
            match event:
                case PromptStates():
                    return await self._finish(request, kind, event)
                case Failed():
                    raise event.error
                case NewTokens():
                    raise RequestCancelledError(f"request {request.request_id} was aborted")
                case _:
                    pass
        raise InternalError(f"request {request.request_id} ended without a result")

    def abort(self, request_id: str) -> None:
        """See `Pooler.abort`."""
        task = asyncio.get_running_loop().create_task(self._abort(request_id))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _abort(self, request_id: str) -> None:
        try:
            await self._engine.abort(request_id)
        except BatonError:  # the engine has ended, and so has the request
            return

    async def _finish(
        self, request: PoolRequest, kind: PoolingKind | None, event: PromptStates
    ) -> Pooled:
        rows = pooled_rows(request, kind, event)
        if len(rows) <= _FEW_ROWS:
            data = self._head.finish(request, rows)
        else:
            data = await asyncio.to_thread(self._head.finish, request, rows)
        return Pooled(data, event.num_cached_tokens)


def engine_request(request: PoolRequest, kind: PoolingKind | None) -> EngineRequest:
    """Return what an engine is to compute; `kind`: which states are pooled, None: all of them."""
    return EngineRequest(
        request_id=request.request_id,
        prompt_token_ids=request.token_ids,
        sampling=SamplingParams(max_tokens=1, temperature=0.0, seed=0),
        priority=request.priority,
        cache_salt=request.cache_salt,
        adapter=request.adapter,
        rows=_ROWS[kind],
    )


def pooled_rows(request: PoolRequest, kind: PoolingKind | None, event: PromptStates) -> Tensor:
    """Return the states that a head finishes: float32 [1 or num_tokens, hidden]."""
    rows = event.parts[0] if len(event.parts) == 1 else torch.cat(event.parts)
    return rows / len(request.token_ids) if kind is PoolingKind.MEAN else rows
