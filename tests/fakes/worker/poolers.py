"""A small real Pooler, and a prefill worker around it over real gRPC."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from prometheus_client import CollectorRegistry

from baton.v1 import (
    common_pb2,
    prefill_pb2,
    prefill_pb2_grpc,
    transfer_pb2,
    worker_pb2,
    worker_pb2_grpc,
)
from services.prefill.metrics import PoolMetrics
from services.prefill.pool import PoolCalls
from shared.directory.base import AdapterState, WorkerLoad, WorkerRecord
from shared.errors import RequestCancelledError
from shared.identity import Role, WorkerId
from shared.pooling.base import Pooled, PoolingFacts, PoolingKind, PoolRequest, PoolTask
from shared.pooling.wire import facts_to_wire
from shared.rpc.protocol import PROTOCOL_MAJOR, PROTOCOL_MINOR
from shared.rpc.server import RpcServer
from shared.worker.health.gate import RequestGate

if TYPE_CHECKING:
    from collections.abc import Sequence

    import grpc

    from tests.integration.router.conftest import Bench

    Context = grpc.aio.ServicerContext[Any, Any]

SIZE = 6
EMBEDDER = PoolingFacts(
    kind=PoolingKind.MEAN,
    size=SIZE,
    max_len=64,
    tasks=frozenset({PoolTask.EMBED, PoolTask.TOKEN_EMBED}),
    supports_dimensions=True,
    prompts={"query": "q: ", "document": ""},
)
#: Of pairs: its score counts the tokens that both texts have.
RERANKER = replace(
    EMBEDDER,
    tasks=frozenset({PoolTask.SCORE}),
    size=0,
    num_token_types=2,
    is_causal=False,
)
CLASSIFIER = replace(EMBEDDER, tasks=frozenset({PoolTask.CLASSIFY}), labels=("bad", "good"))


def rows_of(token_ids: Sequence[int]) -> torch.Tensor:
    """A vector for each token [tokens, SIZE], which follows from its id."""
    ids = torch.tensor(token_ids, dtype=torch.float32)[:, None]
    return torch.sin(ids * torch.arange(1, SIZE + 1) / 7)


def embedding(token_ids: Sequence[int], *, dimensions: int | None = None) -> torch.Tensor:
    """The mean of the tokens' vectors, of length 1 [dimensions]."""
    return torch.nn.functional.normalize(rows_of(token_ids).mean(0)[:dimensions], dim=0)


class TokenPooler:
    """Computes from token ids alone, so that every worker gives the same vectors.

    An adapter turns embeddings round.
    """

    def __init__(self, facts: PoolingFacts = EMBEDDER) -> None:
        self.facts = facts
        self.requests: list[PoolRequest] = []
        #: Requests wait for it, if set.
        self.gate: asyncio.Event | None = None
        self.cancelled: list[str] = []
        self.most_at_once = 0
        #: What is wrong with each vector.
        self.factor = 1.0
        self._running: dict[str, asyncio.Event] = {}

    @property
    def num_running(self) -> int:
        """Requests that have not ended."""
        return len(self._running)

    async def pool(self, request: PoolRequest) -> Pooled:
        """See Pooler."""
        self.requests.append(request)
        aborted = self._running[request.request_id] = asyncio.Event()
        self.most_at_once = max(self.most_at_once, len(self._running))
        try:
            await asyncio.sleep(0)
            if self.gate is not None:
                await self.gate.wait()
            if aborted.is_set():
                raise RequestCancelledError(request.request_id)
        except asyncio.CancelledError:
            self.cancelled.append(request.request_id)
            raise
        finally:
            del self._running[request.request_id]
        return Pooled(self._data(request) * self.factor, len(request.token_ids) // 2)

    def abort(self, request_id: str) -> None:
        """See Pooler."""
        if request_id in self._running:
            self._running[request_id].set()

    def _data(self, request: PoolRequest) -> torch.Tensor:
        ids = request.token_ids
        match request.task:
            case PoolTask.TOKEN_EMBED:
                return rows_of(ids)
            case PoolTask.CLASSIFY:
                good = sum(ids) % 7 / 7
                return torch.tensor([1 - good, good])
            case PoolTask.SCORE:
                types = request.token_type_ids or (0,) * len(ids)
                first = {i for i, kind in zip(ids, types, strict=True) if not kind}
                second = [i for i, kind in zip(ids, types, strict=True) if kind]
                return torch.tensor([sum(i in first for i in second) / (len(second) or 1)])
        if request.normalize is False:
            return rows_of(ids).mean(0)[: request.dimensions]
        found = embedding(ids, dimensions=request.dimensions)
        return found if request.adapter is None else found.flip(0)


@dataclass(slots=True)
class PoolWorker(prefill_pb2_grpc.PrefillServicer, worker_pb2_grpc.WorkerServicer):
    """A prefill worker that makes vectors, and computes no prompts."""

    name: str = "prefill-0"
    pooler: TokenPooler = field(default_factory=TokenPooler)
    is_only: bool = True
    protocol_minor: int = PROTOCOL_MINOR
    #: What it reports.
    adapters: tuple[AdapterState, ...] = ()
    #: Raised by the next call, if set.
    error: Exception | None = None
    gate: RequestGate = field(default_factory=lambda: RequestGate("prefill"))
    metrics: CollectorRegistry = field(default_factory=CollectorRegistry)
    record: WorkerRecord = field(init=False)
    _calls: PoolCalls = field(init=False)
    _server: RpcServer | None = None

    async def start(self, **facts: Any) -> WorkerRecord:
        """Listen; returns what to register."""
        server = self._server = RpcServer(["baton.v1.Prefill", "baton.v1.Worker"])
        prefill_pb2_grpc.add_PrefillServicer_to_server(self, server.server)
        worker_pb2_grpc.add_WorkerServicer_to_server(self, server.server)
        metrics = PoolMetrics(self.metrics)
        self._calls = PoolCalls(self.pooler, self.gate, metrics, model="tiny")
        await server.start("127.0.0.1:0")
        self.record = WorkerRecord(
            worker=WorkerId.born(self.name),
            role=Role.PREFILL,
            address=f"127.0.0.1:{server.port}",
            **{
                "model": "tiny",
                "block_size": 4,
                "num_blocks": 64,
                "max_model_len": self.pooler.facts.max_len,
                "namespace": "ab" * 32,
                **facts,
            },
        )
        return self.record

    async def die(self) -> None:
        """Stop without finishing anything."""
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    async def join(self, bench: Bench) -> None:
        """Register, and wait until the router uses it."""
        await self.start()
        bench.stack.push_async_callback(self.die)
        await bench.parts.registry.register(self.record, 60)
        async with asyncio.timeout(10):
            await bench.parts.endpoints.wait_until(
                lambda: any(
                    e.usable and e.record.worker == self.record.worker
                    for e in bench.parts.endpoints.of_role(Role.PREFILL)
                )
            )

    def load(self) -> WorkerLoad:
        """What it reports with a heartbeat."""
        return WorkerLoad(adapters=self.adapters, max_adapters=2 if self.adapters else 0)

    async def GetInfo(  # noqa: N802 the name in the contract
        self, request: worker_pb2.GetInfoRequest, context: Context
    ) -> worker_pb2.GetInfoResponse:
        """Who this is, and what it makes."""
        own = self.record.worker
        worker = common_pb2.WorkerId(name=own.name, incarnation=own.incarnation)
        protocol = common_pb2.ProtocolVersion(major=PROTOCOL_MAJOR, minor=self.protocol_minor)
        return worker_pb2.GetInfoResponse(
            peer=transfer_pb2.PeerInfo(worker=worker, protocol=protocol),
            pooling=facts_to_wire(self.pooler.facts, is_only=self.is_only),
        )

    async def Pool(  # noqa: N802 the name in the contract
        self, request: prefill_pb2.PoolRequest, context: Context
    ) -> prefill_pb2.PoolResponse:
        """As a real worker does."""
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return await self._calls.answer(request, context.time_remaining())
