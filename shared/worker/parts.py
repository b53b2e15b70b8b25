"""A worker's parts, made from its settings."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from baton.v1 import worker_pb2
from shared.connector.instrumented import TransferCounters
from shared.directory.base import WorkerRecord
from shared.directory.probe import probe_digest
from shared.engine.adapters.build import attach
from shared.engine.engine import Engine
from shared.engine.engine_metrics import EngineCollector
from shared.engine.grammar.build import build_grammars
from shared.engine.thread.engine_thread import EngineThread
from shared.identity import Role, WorkerId
from shared.kv.identity import model_identity
from shared.pooling.choice import makes_vectors
from shared.pooling.loading import make_engine_pooler
from shared.pooling.wire import facts_to_wire
from shared.rpc.channel import ChannelPool
from shared.rpc.wire import role_to_wire, roles_to_wire
from shared.telemetry.build_info import add_build_info
from shared.telemetry.tracing_settings import open_tracer
from shared.version import VERSION
from shared.worker.adapters import AdapterCollector
from shared.worker.cores import CoreCollector, cores_of
from shared.worker.health.gate import RequestGate
from shared.worker.health.grammar_metrics import GrammarCollector
from shared.worker.health.metrics import TransferCollector
from shared.worker.health.rank_metrics import RankCollector
from shared.worker.health.release_meter import ReleaseMeter
from shared.worker.health.request_metrics import RequestMetrics
from shared.worker.health.role_metrics import RoleCollector
from shared.worker.peers.breaker import BreakerMetrics
from shared.worker.peers.connectors import open_connectors
from shared.worker.peers.outgoing import Recipients
from shared.worker.peers.peers import PeerBook
from shared.worker.reuse.assembly import build_reuse
from shared.worker.roles import EngineRole, WorkerRoles, has_drafts, served_roles

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from baton.v1 import transfer_pb2
    from shared.engine.cores import Cores
    from shared.engine.grammar.compiler import GrammarCompiler
    from shared.engine.step.followers.followers import Followers
    from shared.engine.step.hidden import HiddenPool
    from shared.kv.content_log import ContentLog
    from shared.kv.layout import KVLayout
    from shared.model.loaded import LoadedModel
    from shared.model.native.core_lease import CoreLease
    from shared.pooling.base import Pooler
    from shared.rpc.auth import ClusterToken
    from shared.rpc.tls.files import CertificateFiles
    from shared.telemetry.tracing import Tracer
    from shared.text.token_table import TokenTable
    from shared.worker.adapters import WorkerAdapters
    from shared.worker.config import WorkerConfig
    from shared.worker.lifecycle.weights import Weights, WeightSource
    from shared.worker.peers.endpoints import Endpoints
    from shared.worker.reuse.prefix_reuse import PrefixReuse
    from shared.worker.roles import Preference

    #: Function that reads the token table of a model's folder, given its number of logits.
    ReadTokenTable = Callable[[Path, int], TokenTable]

_NO_DRAFTS = "it guesses no tokens: it started as a prefill worker, without the model for drafts"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParts:
    """Everything that the services of a worker use. Closed by `open_parts`."""

    config: WorkerConfig
    roles: WorkerRoles
    worker: WorkerId
    #: Where the weights of this incarnation come from.
    weights: WeightSource
    engine: EngineThread
    #: Hidden states of prompts: their blocks, and those that the engine's proposer needs.
    hidden: HiddenPool
    max_model_len: int
    #: Blocks of host memory for prompts from peers while the pool is full.
    num_landing_blocks: int
    endpoints: Endpoints
    recipients: Recipients
    channels: ChannelPool
    peers: PeerBook
    reuse: PrefixReuse
    grammars: GrammarCompiler
    adapters: WorkerAdapters
    #: None if the worker makes no vectors.
    pooler: Pooler | None
    transfers: TransferCounters
    gate: RequestGate
    metrics: CollectorRegistry
    #: What all services count in `metrics`.
    requests: RequestMetrics
    releases: ReleaseMeter
    #: None unless the environment asks for traces.
    tracer: Tracer | None
    #: Of all circuit breakers of this worker.
    breakers: BreakerMetrics
    #: The contents of the engine's blocks, if KV events are published.
    contents: ContentLog | None

    @property
    def peer_info(self) -> transfer_pb2.PeerInfo:
        """What peers compare."""
        return self.peers.info

    @property
    def layout(self) -> KVLayout:
        """The layout of the whole model's blocks."""
        return self.endpoints.holder.layout

    def record(self, address: str) -> WorkerRecord:
        """Return the record for the directory."""
        return WorkerRecord(
            worker=self.worker,
            role=self.roles.first,
            serves=self.roles.served,
            address=address,
            model=self.config.model.name,
            namespace=self.peer_info.namespace,
            block_size=self.layout.block_size,
            num_blocks=self.engine.stats().num_blocks,
            num_landing_blocks=self.num_landing_blocks,
            max_num_seqs=self.config.engine.max_num_seqs,
            max_model_len=self.max_model_len,
            identity=model_identity(self.peer_info.model_fingerprint, self.layout.format).hex(),
            generation=self.weights.generation,
            labels=self.weights.labels,
            probe=probe_digest(bytes.fromhex(self.peer_info.namespace), self.layout.block_size),
        )

    def describe(self) -> worker_pb2.GetInfoResponse:
        """Return the worker's public description."""
        return worker_pb2.GetInfoResponse(
            role=role_to_wire(self.roles.first),
            serves=roles_to_wire(self.roles.served),
            model=self.config.model.name,
            peer=self.peer_info,
            num_blocks=self.engine.stats().num_blocks,
            max_model_len=self.max_model_len,
            software_version=VERSION,
            pooling=_offer(self.roles.served, self.pooler),
        )


@asynccontextmanager
async def open_parts(
    config: WorkerConfig,
    preference: Preference,
    *,
    weights: Weights,
    adapters: WorkerAdapters,
    followers: Followers,
    lease: CoreLease | None = None,
    read_token_table: ReadTokenTable,
    token: ClusterToken | None = None,
    certificates: CertificateFiles | None = None,
) -> AsyncIterator[WorkerParts]:
    """Start the engine and the connectors; close both at the end. Raises ConfigError."""
    worker, role, transfers = WorkerId.born(config.name), preference.first, TransferCounters()
    async with AsyncExitStack() as stack:
        build = partial(_build_engine, config, role, weights.loaded, adapters, followers)
        cores = cores_of(lease, weights.loaded)
        engine, contents, thread = await _started(config, build, cores, adapters, stack)
        endpoints = await open_connectors(config, worker, engine, transfers, stack)
        channels, peers = _peers(engine, endpoints, token, certificates, stack)
        grammars = _grammars(config, engine, thread, read_token_table, stack)
        metrics = _metrics(config, role, engine, thread, transfers, endpoints, grammars, adapters)
        _count_cores(lease, config, metrics)
        breakers, gate = BreakerMetrics(metrics), _gate(config)
        yield WorkerParts(
            config=config,
            roles=await _roles(config, weights, preference, thread, gate, metrics),
            worker=worker,
            weights=weights.source,
            engine=thread,
            hidden=engine.hidden,
            max_model_len=engine.max_model_len,
            num_landing_blocks=engine.num_landing_blocks,
            endpoints=endpoints,
            recipients=Recipients(endpoints),
            channels=channels,
            peers=peers,
            reuse=_reuse(config, worker, engine, thread, peers, channels, metrics, breakers),
            grammars=grammars,
            adapters=adapters,
            pooler=_pooler(config, engine, thread, weights),
            transfers=transfers,
            gate=gate,
            metrics=metrics,
            requests=RequestMetrics(metrics),
            releases=ReleaseMeter(thread, metrics),
            tracer=_tracer(role, worker, stack),
            breakers=breakers,
            contents=contents,
        )


def _count_cores(lease: CoreLease | None, config: WorkerConfig, metrics: CollectorRegistry) -> None:
    if lease is not None:
        metrics.register(CoreCollector(lease.counts, model=config.model.name))


async def _roles(
    config: WorkerConfig,
    weights: Weights,
    preference: Preference,
    thread: EngineThread,
    gate: RequestGate,
    metrics: CollectorRegistry,
) -> WorkerRoles:
    role = preference.first
    served = served_roles(config, role, config.model.changed(weights.source.folder))
    limits = () if has_drafts(config, role) or config.engine.speculation is None else (_NO_DRAFTS,)
    roles = WorkerRoles(config.name, preference, served, EngineRole(thread), gate, limits=limits)
    metrics.register(RoleCollector(served, lambda: roles.preference, model=config.model.name))
    await roles.begin()
    return roles


def _pooler(
    config: WorkerConfig, engine: Engine, thread: EngineThread, weights: Weights
) -> Pooler | None:
    """Return what makes vectors of the model; None if it is run for answers alone."""
    folder = config.model.changed(weights.source.folder)
    if not makes_vectors(config.pooling, folder):
        return None
    return make_engine_pooler(
        folder,
        weights.loaded.spec,
        thread,
        max_model_len=engine.max_model_len,
        settings=config.pooling.head,
    )


def _offer(served: frozenset[Role], pooler: Pooler | None) -> worker_pb2.PoolingFacts | None:
    if pooler is None:
        return None
    return facts_to_wire(pooler.facts, is_only=Role.DECODE not in served)


def _tracer(role: Role, worker: WorkerId, stack: AsyncExitStack) -> Tracer | None:
    tracer = open_tracer(role.value, instance=worker.name, environ=os.environ)
    if tracer is not None:
        stack.push_async_callback(tracer.close)
    return tracer


def _peers(
    engine: Engine,
    endpoints: Endpoints,
    token: ClusterToken | None,
    certificates: CertificateFiles | None,
    stack: AsyncExitStack,
) -> tuple[ChannelPool, PeerBook]:
    channels = ChannelPool(token=token, certificates=certificates)
    stack.push_async_callback(channels.close)
    info = endpoints.describe(
        model_fingerprint=engine.model_fingerprint,
        namespace=engine.namespace,
        sends_layers=engine.may_part,
    )
    return channels, PeerBook(info=info, endpoints=endpoints, channels=channels)


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


def _cache_config(config: WorkerConfig, engine: Engine) -> dict[str, str]:
    """Return the labels of a metric; vLLM's names where vLLM has them."""
    layout = engine.layout
    return {
        "block_size": str(layout.block_size),
        "num_blocks": str(engine.num_blocks),
        "block_bytes": str(layout.block_bytes),
        "cache_dtype": str(layout.dtype),
        "enable_prefix_caching": str(config.engine.enable_prefix_caching).lower(),
    }


def _metrics(
    config: WorkerConfig,
    role: Role,
    engine: Engine,
    thread: EngineThread,
    transfers: TransferCounters,
    endpoints: Endpoints,
    grammars: GrammarCompiler,
    adapters: WorkerAdapters,
) -> CollectorRegistry:
    metrics = CollectorRegistry()
    add_build_info(metrics, role=role.value)
    cache_config = _cache_config(config, engine)
    metrics.register(
        EngineCollector(thread.stats, model=config.model.name, cache_config=cache_config)
    )
    metrics.register(TransferCollector(transfers, endpoints.all_connectors))
    metrics.register(GrammarCollector(grammars.stats, model=config.model.name))
    if engine.followers.size > 1:
        pids = {0: os.getpid(), **dict(enumerate(engine.followers.pids, 1))}
        metrics.register(RankCollector(pids, model=config.model.name))
    metrics.register(AdapterCollector(adapters, thread.stats, model=config.model.name))
    return metrics


def _grammars(
    config: WorkerConfig,
    engine: Engine,
    thread: EngineThread,
    read: ReadTokenTable,
    stack: AsyncExitStack,
) -> GrammarCompiler:
    model = config.model.folder
    grammars = build_grammars(config.engine, lambda: read(model, engine.vocab_size))
    grammars.on_news(thread.wake)
    stack.callback(grammars.close)
    return grammars


def _build_engine(
    config: WorkerConfig,
    role: Role,
    loaded: LoadedModel,
    adapters: WorkerAdapters,
    followers: Followers,
) -> Engine:
    engine = config.engine
    if not has_drafts(config, role):
        engine = replace(engine, speculative_config=None)
    attach(adapters.store, loaded, engine)
    return Engine(loaded, engine, adapters=adapters.store, followers=followers)


async def _started(
    config: WorkerConfig,
    build: Callable[[], Engine],
    cores: Cores,
    adapters: WorkerAdapters,
    stack: AsyncExitStack,
) -> tuple[Engine, ContentLog | None, EngineThread]:
    """Start an engine's thread; at the end, nothing refers to the model any more.

    Return the log of its blocks' contents, too, if KV events are published.
    """
    engine = await asyncio.to_thread(build)
    contents = engine.record_contents() if config.kv_events_endpoint else None
    if adapters.store is not None:
        stack.callback(adapters.store.forget_contents)
        stack.callback(adapters.store.attach, None)
    stack.callback(engine.close)
    thread = EngineThread(engine, cores)
    await thread.start()
    stack.push_async_callback(thread.stop)
    return engine, contents, thread


def _gate(config: WorkerConfig) -> RequestGate:
    max_inside = config.engine.max_num_seqs + config.max_waiting_requests
    return RequestGate(config.name, max_inside=max_inside)
