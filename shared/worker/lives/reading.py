"""The life of a worker whose model reads whole texts: it makes vectors, and has no engine.

There is no KV: nothing is cached, handed over or told to peers. It pauses; orders that change
weights are refused.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry

from baton.v1 import (
    common_pb2,
    lifecycle_pb2_grpc,
    transfer_pb2,
    worker_pb2,
    worker_pb2_grpc,
)
from shared.address import join_address
from shared.directory.base import WorkerLoad, WorkerRecord
from shared.directory.probe import probe_digest
from shared.errors import DrainingError, UnsupportedError
from shared.identity import Role, WorkerId
from shared.kv.identity import model_identity
from shared.pooling.loading import load_encoder_pooler
from shared.pooling.wire import facts_to_wire
from shared.rpc.channel import ChannelPool
from shared.rpc.protocol import PROTOCOL_MAJOR, PROTOCOL_MINOR
from shared.rpc.wire import worker_id_to_wire
from shared.telemetry.build_info import add_build_info
from shared.version import VERSION
from shared.worker.health.gate import RequestGate
from shared.worker.health.metrics_server import serve_metrics
from shared.worker.join.joining import Member, join, leave, open_places, reason_of
from shared.worker.lifecycle.stage import Ending
from shared.worker.lifecycle.weights import first_source
from shared.worker.lives.reader_orders import ReaderOrders
from shared.worker.lives.sleeping import NoBlocks
from shared.worker.worker_servicer import wanted_role

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import grpc

    from shared.pooling.encoder_pooler import EncoderPooler
    from shared.rpc.auth import ClusterToken
    from shared.rpc.server import RpcServer
    from shared.rpc.tls.files import CertificateFiles
    from shared.worker.config import WorkerConfig

    Context = grpc.aio.ServicerContext[Any, Any]

log = structlog.get_logger(__name__)

#: Of the record: there are no blocks, and a directory wants numbers over 0.
_BLOCK_SIZE = _NUM_BLOCKS = 1
_NO_ADAPTERS = "this worker reads whole texts: it serves no adapters"
#: Share of the grace period in which running requests may end.
_FINISH_SHARE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """The parts of a worker that makes vectors of whole texts."""

    config: WorkerConfig
    worker: WorkerId
    pooler: EncoderPooler
    gate: RequestGate
    metrics: CollectorRegistry

    @property
    def identity(self) -> str:
        """Hex digest of what decides its vectors."""
        return model_identity(self.pooler.fingerprint, "none").hex()

    def record(self, address: str) -> WorkerRecord:
        """Return the record for the directory."""
        source = first_source(self.config)
        return WorkerRecord(
            worker=self.worker,
            role=Role.PREFILL,
            serves=frozenset({Role.PREFILL}),
            address=address,
            model=self.config.model.name,
            namespace=self.identity,
            block_size=_BLOCK_SIZE,
            num_blocks=_NUM_BLOCKS,
            max_model_len=self.pooler.facts.max_len,
            identity=self.identity,
            generation=source.generation,
            labels=source.labels,
            probe=probe_digest(bytes.fromhex(self.identity), _BLOCK_SIZE),
        )

    def load(self) -> WorkerLoad:
        """Return the load for a heartbeat. May be called in any thread."""
        return WorkerLoad(num_running=self.gate.num_inside, draining=self.gate.draining)

    def describe(self) -> worker_pb2.GetInfoResponse:
        """Return the worker's public description."""
        return worker_pb2.GetInfoResponse(
            role=common_pb2.ROLE_PREFILL,
            serves=[common_pb2.ROLE_PREFILL],
            model=self.config.model.name,
            peer=transfer_pb2.PeerInfo(
                protocol=common_pb2.ProtocolVersion(major=PROTOCOL_MAJOR, minor=PROTOCOL_MINOR),
                worker=worker_id_to_wire(self.worker),
                model_fingerprint=self.pooler.fingerprint,
                namespace=self.identity,
            ),
            max_model_len=self.pooler.facts.max_len,
            software_version=VERSION,
            pooling=facts_to_wire(self.pooler.facts, is_only=True),
        )


class ReaderServicer(worker_pb2_grpc.WorkerServicer):
    """The Worker service of a worker without an engine."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def GetInfo(  # noqa: N802 the name in the contract
        self, request: worker_pb2.GetInfoRequest, context: Context
    ) -> worker_pb2.GetInfoResponse:
        """Return the worker's description, constant for this incarnation."""
        return self._reader.describe()

    async def GetLoad(  # noqa: N802 the name in the contract
        self, request: worker_pb2.GetLoadRequest, context: Context
    ) -> worker_pb2.GetLoadResponse:
        """Return the number of requests."""
        gate = self._reader.gate
        return worker_pb2.GetLoadResponse(
            num_running=gate.num_inside,
            num_requests=gate.num_inside,
            draining=gate.draining,
            unhealthy=gate.unhealthy,
        )

    async def Drain(  # noqa: N802 the name in the contract
        self, request: worker_pb2.DrainRequest, context: Context
    ) -> worker_pb2.DrainResponse:
        """Take no new work; answer when the last request has ended."""
        num_unfinished = await self._reader.gate.drain(request.grace_s)
        return worker_pb2.DrainResponse(num_unfinished=num_unfinished)

    async def Prefer(  # noqa: N802 the name in the contract
        self, request: worker_pb2.PreferRequest, context: Context
    ) -> worker_pb2.PreferResponse:
        """Refuse everything but prefill: there is no KV to write an answer with."""
        if wanted_role(request) is not Role.PREFILL:
            name = self._reader.config.name
            raise UnsupportedError(
                f"{name} reads whole texts: it makes vectors and no answers", param="role"
            )
        return worker_pb2.PreferResponse(role=request.role)

    async def ResetPrefixCache(  # noqa: N802 the name in the contract
        self, request: worker_pb2.ResetPrefixCacheRequest, context: Context
    ) -> worker_pb2.ResetPrefixCacheResponse:
        """Drop nothing: there is no cache."""
        return worker_pb2.ResetPrefixCacheResponse()

    async def LoadAdapter(  # noqa: N802 the name in the contract
        self, request: worker_pb2.LoadAdapterRequest, context: Context
    ) -> worker_pb2.LoadAdapterResponse:
        """Refuse: see `_NO_ADAPTERS`."""
        raise UnsupportedError(_NO_ADAPTERS)

    async def UnloadAdapter(  # noqa: N802 the name in the contract
        self, request: worker_pb2.UnloadAdapterRequest, context: Context
    ) -> worker_pb2.UnloadAdapterResponse:
        """Refuse: see `_NO_ADAPTERS`."""
        raise UnsupportedError(_NO_ADAPTERS)

    async def ListAdapters(  # noqa: N802 the name in the contract
        self, request: worker_pb2.ListAdaptersRequest, context: Context
    ) -> worker_pb2.ListAdaptersResponse:
        """Return none."""
        return worker_pb2.ListAdaptersResponse()


async def read_life(
    config: WorkerConfig,
    server: RpcServer,
    *,
    add_service: Callable[[Reader, grpc.aio.Server], None],
    stopping: asyncio.Event,
    token: ClusterToken | None,
    certificates: CertificateFiles | None,
) -> Ending:
    """Serve until a signal, or until a directory refuses the worker.

    Raises:
        ConfigError, ModelLoadError: the worker cannot start as configured.
    """
    async with AsyncExitStack() as stack:
        reader = await _open(config, stack)
        add_service(reader, server.server)
        worker_pb2_grpc.add_WorkerServicer_to_server(ReaderServicer(reader), server.server)
        lifecycle_pb2_grpc.add_LifecycleServicer_to_server(ReaderOrders(reader), server.server)
        await server.start(join_address(config.host, config.port))
        stack.push_async_callback(server.stop, 0)
        _report(reader, server, stack)
        address = config.address(server.port)
        channels = ChannelPool(token=token, certificates=certificates)
        stack.push_async_callback(channels.close)
        member = Member(reader.record(address), NoBlocks(), reader.load, reader.gate)
        places = open_places(config, reader.worker, channels, stack, token=token)
        joined = [join(member, place, stack) for place in places]
        log.info("ready", worker=str(reader.worker), address=address)
        ending = await _until(stopping, [one.task for one in joined], reader)
        if ending is Ending.STOPPED:
            await _drain(reader)
        await asyncio.gather(*(leave(one) for one in joined))
        return ending


async def _open(config: WorkerConfig, stack: AsyncExitStack) -> Reader:
    settings = config.model
    pooler = await asyncio.to_thread(
        load_encoder_pooler,
        settings.folder,
        settings=config.pooling.head,
        dtype=settings.dtype,
        num_threads=config.num_threads,
        bind=config.cpu_threads_bind,
        max_batch_tokens=config.engine.max_num_batched_tokens,
        max_waiting=config.engine.max_num_seqs + config.max_waiting_requests,
    )
    pooler.start()
    stack.callback(pooler.close)
    metrics = CollectorRegistry()
    add_build_info(metrics, role=Role.PREFILL.value)
    max_inside = config.engine.max_num_seqs + config.max_waiting_requests
    return Reader(
        config=config,
        worker=WorkerId.born(config.name),
        pooler=pooler,
        gate=RequestGate(config.name, max_inside=max_inside),
        metrics=metrics,
    )


def _report(reader: Reader, server: RpcServer, stack: AsyncExitStack) -> None:
    """Serve metrics until the stack closes, if a port is set; let health checks tell the gate."""
    config, gate = reader.config, reader.gate
    tasks: set[asyncio.Task[None]] = set()

    def report() -> None:
        task = asyncio.create_task(server.set_serving(serving=gate.is_open))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    gate.on_change(report)
    if config.metrics_port:
        stop = serve_metrics(
            reader.metrics, config.host, config.metrics_port, is_serving=lambda: gate.is_open
        )
        stack.callback(stop)


async def _until(
    stopping: asyncio.Event, memberships: list[asyncio.Task[None]], reader: Reader
) -> Ending:
    stopped = asyncio.create_task(stopping.wait())
    await asyncio.wait({stopped, *memberships}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if stopping.is_set():
        return Ending.STOPPED
    for task in memberships:
        if task.done():
            log.error("directory_refuses", worker=str(reader.worker), error=reason_of(task))
    return Ending.BROKEN


async def _drain(reader: Reader) -> None:
    """Let running requests end within the grace period; the others go to other workers."""
    gate, grace_s = reader.gate, reader.config.drain_grace_s
    log.info("draining", worker=str(reader.worker), num_inside=gate.num_inside)
    if await gate.drain(grace_s * _FINISH_SHARE):
        message = f"{reader.config.name} was stopped before the request had finished"
        gate.expel(lambda: DrainingError(message))
        await gate.wait_empty(grace_s * (1 - _FINISH_SHARE))
