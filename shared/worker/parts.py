"""What a worker is made of, put together from its settings."""

from __future__ import annotations

import asyncio
import os
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from baton.v1 import common_pb2, transfer_pb2, worker_pb2
from shared.connector.instrumented import InstrumentedConnector, TransferCounters
from shared.connector.registry import ON_DEVICE, ConnectorSettings, create
from shared.connector.staged import StagedConnector
from shared.connector.staging_pool import StagingPool
from shared.directory.base import WorkerRecord
from shared.directory.probe import probe_digest
from shared.engine.engine import Engine
from shared.engine.engine_thread import EngineThread
from shared.engine.grammar.build import build_grammars
from shared.identity import Role, WorkerId
from shared.model.loader import load_model
from shared.rpc.channel import ChannelPool
from shared.rpc.tls.files import open_certificates
from shared.rpc.tls.identity import PeerRole
from shared.rpc.wire import worker_id_to_wire
from shared.version import VERSION
from shared.worker.breaker import BreakerMetrics
from shared.worker.compatibility import PROTOCOL_MAJOR, PROTOCOL_MINOR
from shared.worker.gate import RequestGate
from shared.worker.grammar_metrics import GrammarCollector
from shared.worker.metrics import EngineCollector, TransferCollector
from shared.worker.peers import PeerBook
from shared.worker.release_meter import ReleaseMeter
from shared.worker.reuse.assembly import build_reuse
from shared.worker.wire import layout_to_wire, offer_to_wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from shared.connector.base import Connector
    from shared.engine.grammar.compiler import GrammarCompiler
    from shared.kv.content_log import ContentLog
    from shared.kv.layout import KVLayout
    from shared.rpc.auth import ClusterToken
    from shared.rpc.tls.files import CertificateFiles
    from shared.text.token_table import TokenTable
    from shared.worker.config import WorkerConfig
    from shared.worker.reuse.prefix_reuse import PrefixReuse

    #: What the tokens in a model's folder mean, for a model with so many logits.
    ReadTokenTable = Callable[[Path, int], TokenTable]

_WIRE_ROLES = {
    Role.PREFILL: common_pb2.ROLE_PREFILL,
    Role.DECODE: common_pb2.ROLE_DECODE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParts:
    """Everything that the services of a worker use. Closed by `open_parts`."""

    config: WorkerConfig
    role: Role
    worker: WorkerId
    engine: EngineThread
    layout: KVLayout
    max_model_len: int
    connectors: Sequence[Connector]
    certificates: CertificateFiles | None
    channels: ChannelPool
    peers: PeerBook
    reuse: PrefixReuse
    grammars: GrammarCompiler
    peer_info: transfer_pb2.PeerInfo
    transfers: TransferCounters
    gate: RequestGate
    metrics: CollectorRegistry
    releases: ReleaseMeter
    #: Of all circuit breakers of this worker.
    breakers: BreakerMetrics
    #: What the engine's blocks contain, if KV events are published.
    contents: ContentLog | None

    def record(self, address: str) -> WorkerRecord:
        """What the directory is told."""
        return WorkerRecord(
            worker=self.worker,
            role=self.role,
            address=address,
            model=self.config.model.name,
            namespace=self.peer_info.namespace,
            block_size=self.layout.block_size,
            num_blocks=self.engine.stats().num_blocks,
            max_model_len=self.max_model_len,
            probe=probe_digest(bytes.fromhex(self.peer_info.namespace), self.layout.block_size),
        )

    def describe(self) -> worker_pb2.GetInfoResponse:
        """What anybody may know."""
        return worker_pb2.GetInfoResponse(
            role=_WIRE_ROLES[self.role],
            model=self.config.model.name,
            peer=self.peer_info,
            num_blocks=self.engine.stats().num_blocks,
            max_model_len=self.max_model_len,
            software_version=VERSION,
        )


@asynccontextmanager
async def open_parts(
    config: WorkerConfig,
    role: Role,
    *,
    read_token_table: ReadTokenTable,
    token: ClusterToken | None = None,
) -> AsyncIterator[WorkerParts]:
    """Load the model, start the engine and the connectors; undo it all at the end.

    Raises:
        ConfigError, ModelLoadError: the worker cannot start as configured.
    """
    worker = WorkerId.born(config.name)
    certificates = open_certificates(config.tls, PeerRole(role.value))
    async with AsyncExitStack() as stack:
        engine = await asyncio.to_thread(_build_engine, config, role)
        contents = engine.record_contents() if config.kv_events_endpoint else None
        stack.callback(engine.close)
        thread = await _started(EngineThread(engine), stack)
        transfers = TransferCounters()
        connectors = await _connectors(config, worker, engine, transfers, stack)
        channels = ChannelPool(token=token, certificates=certificates)
        stack.push_async_callback(channels.close)
        info = _peer_info(worker, engine, connectors)
        grammars = _grammars(config, engine, read_token_table, stack)
        metrics = _metrics(config, thread, transfers, connectors)
        metrics.register(GrammarCollector(grammars.stats, model=config.model.name))
        breakers = BreakerMetrics(metrics)
        peers = PeerBook(info=info, connectors=connectors, channels=channels)
        yield WorkerParts(
            config=config,
            role=role,
            worker=worker,
            engine=thread,
            layout=engine.layout,
            max_model_len=engine.max_model_len,
            connectors=connectors,
            certificates=certificates,
            channels=channels,
            peers=peers,
            reuse=_reuse(config, worker, engine, thread, peers, channels, metrics, breakers),
            grammars=grammars,
            peer_info=info,
            transfers=transfers,
            gate=_gate(config),
            metrics=metrics,
            releases=ReleaseMeter(thread, metrics),
            breakers=breakers,
            contents=contents,
        )


def _reuse(
    config: WorkerConfig,
    worker: WorkerId,
    engine: Engine,
    thread: EngineThread,
    peers: PeerBook,
    channels: ChannelPool,
    metrics: CollectorRegistry,
    breakers: BreakerMetrics,
) -> PrefixReuse:
    return build_reuse(
        config,
        worker=worker,
        engine=thread,
        namespace=engine.namespace,
        layout=engine.layout,
        peers=peers,
        channels=channels,
        metrics=metrics,
        breakers=breakers,
    )


def _metrics(
    config: WorkerConfig,
    thread: EngineThread,
    transfers: TransferCounters,
    connectors: Sequence[Connector],
) -> CollectorRegistry:
    metrics = CollectorRegistry()
    metrics.register(EngineCollector(thread.stats, model=config.model.name))
    metrics.register(TransferCollector(transfers, connectors))
    return metrics


def _grammars(
    config: WorkerConfig, engine: Engine, read_token_table: ReadTokenTable, stack: AsyncExitStack
) -> GrammarCompiler:
    grammars = build_grammars(
        config.engine, lambda: read_token_table(config.model.model, engine.vocab_size)
    )
    stack.callback(grammars.close)
    return grammars


def _build_engine(config: WorkerConfig, role: Role) -> Engine:
    settings = config.model
    engine = config.engine
    if role is Role.PREFILL:
        # It samples one token per request: there is nothing to guess.
        engine = replace(engine, speculative_config=None)
    loaded = load_model(
        settings.model,
        dtype=settings.dtype,
        load_format=settings.load_format,
        seed=settings.model_seed,
        device=config.engine.device,
        attention_backend=settings.attention_backend,
        quantization=settings.quantization,
        num_threads=config.num_threads,
    )
    return Engine(loaded, engine)


async def _started(thread: EngineThread, stack: AsyncExitStack) -> EngineThread:
    await thread.start()
    stack.push_async_callback(thread.stop)
    return thread


async def _connectors(
    config: WorkerConfig,
    worker: WorkerId,
    engine: Engine,
    transfers: TransferCounters,
    stack: AsyncExitStack,
) -> Sequence[Connector]:
    settings = ConnectorSettings(
        runtime_dir=config.runtime_dir or _default_runtime_dir(),
        endpoint=f"tcp://{config.host}:{config.transfer_port}",
        advertise_host=config.reachable_host,
        advertise_port=config.advertise_transfer_port,
        encrypt=config.encrypts_transfers,
    )
    memory = engine.kv_memory
    if memory is not None:
        created = create(config.connectors, worker=worker, memory=memory, settings=settings)
    else:
        layout = engine.layout
        staging = engine.stage_kv(
            max(
                config.transfer_staging_bytes // layout.block_bytes,
                layout.num_blocks(engine.max_model_len),
            )
        )
        stack.callback(staging.close)
        if ON_DEVICE.intersection(config.connectors):
            settings = replace(settings, device=staging.share())
        inner = create(config.connectors, worker=worker, memory=staging.memory, settings=settings)
        pool = StagingPool(staging.memory.num_blocks)
        created = [
            one if one.name in ON_DEVICE else StagedConnector(one, pool, staging) for one in inner
        ]
    connectors = [InstrumentedConnector(inner, observer=transfers) for inner in created]
    for connector in connectors:
        await connector.start()
        stack.push_async_callback(connector.close)
    return connectors


def _default_runtime_dir() -> Path:
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(base) / f"baton-{os.getuid()}"


def _peer_info(
    worker: WorkerId, engine: Engine, connectors: Sequence[Connector]
) -> transfer_pb2.PeerInfo:
    return transfer_pb2.PeerInfo(
        protocol=common_pb2.ProtocolVersion(major=PROTOCOL_MAJOR, minor=PROTOCOL_MINOR),
        worker=worker_id_to_wire(worker),
        model_fingerprint=engine.model_fingerprint,
        layout=layout_to_wire(engine.layout),
        namespace=engine.namespace.hex(),
        offers=[offer_to_wire(connector.offer()) for connector in connectors],
        tensor_parallel_size=1,
    )


def _gate(config: WorkerConfig) -> RequestGate:
    max_inside = config.engine.max_num_seqs + config.max_waiting_requests
    return RequestGate(config.name, max_inside=max_inside)
