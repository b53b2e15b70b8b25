"""A worker process: load, then one life after the other.

services/worker adds the services and the settings of roles; the rest is here.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import grpc
import structlog

from baton.v1 import lifecycle_pb2_grpc
from shared.config import load_config
from shared.engine.adapters.build import attach
from shared.engine.offload.build import forget_disk
from shared.engine.ranks.leader import RankLeader
from shared.engine.settings.ranks import placed_ranks
from shared.errors import ConfigError, ModelLoadError
from shared.model.checkpoint.loading.heap import give_back_free
from shared.pooling.loading import reads_whole_texts
from shared.rpc.auth import AuthInterceptor, ClusterToken
from shared.rpc.server import RpcServer
from shared.rpc.service_switch import ServiceSet, ServiceSwitch
from shared.rpc.tls.files import open_certificates
from shared.rpc.tls.identity import PeerRole
from shared.rpc.tls.server import ServerTls
from shared.rpc.watched_file import following
from shared.telemetry.logs import configure_logs
from shared.worker.adapters import open_adapters
from shared.worker.checks import check_reader, check_worker
from shared.worker.cores import open_lease
from shared.worker.kv_events.publisher import open_publisher
from shared.worker.lifecycle.lifecycle import Lifecycle
from shared.worker.lifecycle.profiling import Profiling
from shared.worker.lifecycle.servicer import LifecycleServicer
from shared.worker.lifecycle.stage import Ending, Stage
from shared.worker.lives.reading import Reader, read_life
from shared.worker.lives.serving import serve_life
from shared.worker.lives.site import Site
from shared.worker.lives.sleeping import sleep_life
from shared.worker.node import follow_node_0, log_settings, own_node
from shared.worker.parts import WorkerParts
from shared.worker.roles import ROLE_SERVICES, Preference, served_roles

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from shared.identity import Role
    from shared.model.native.core_lease import CoreLease
    from shared.rpc.tls.files import CertificateFiles
    from shared.worker.adapters import WorkerAdapters
    from shared.worker.config import WorkerConfig
    from shared.worker.parts import ReadTokenTable

log = structlog.get_logger(__name__)

EXIT_BROKEN = 1
EXIT_USAGE = 2
WORKER_SERVICES = ("baton.v1.Worker", "baton.v1.Transfer", "baton.v1.Lifecycle")


class HasWorkerConfig(Protocol):
    """A program's settings: the worker's, and those of its services."""

    @property
    def worker(self) -> WorkerConfig:
        """The settings of all workers."""
        ...


C = TypeVar("C", bound=HasWorkerConfig)
AddServices = Callable[[C, WorkerParts, ServiceSet], None]
AddReader = Callable[[Reader, grpc.aio.Server], None]


def main(
    config_type: type[C],
    role: Role,
    *,
    argv: Sequence[str],
    add_services: AddServices[C],
    add_reader: AddReader,
    read_token_table: ReadTokenTable,
) -> int:
    """Run a worker until it is told to stop; return the exit code.

    `add_services` adds the servicers of roles. `read_token_table` reads the tokens of a model's
    folder: workers need them for grammars, and use no tokenizer otherwise. `add_reader` adds the
    servicer of a model that reads whole texts.
    """
    try:
        config = load_config(config_type, argv, prog=f"baton serve {role.value}")
        worker = config.worker
        configure_logs(
            service=role.value, level=worker.log_level, as_json=worker.log_format == "json"
        )
        # Before there are threads: they inherit the setting.
        os.nice(worker.niceness)
        code = asyncio.run(
            run_worker(
                worker,
                role,
                add_services=partial(add_services, config),
                add_reader=add_reader,
                read_token_table=read_token_table,
            )
        )
    except (ConfigError, ModelLoadError) as error:
        sys.stderr.write(f"{role.value} worker cannot start: {error}\n")
        return EXIT_USAGE
    # The worker has stopped in order: a second signal at exit must not change the exit code.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return code


async def run_worker(
    config: WorkerConfig,
    role: Role,
    *,
    add_services: Callable[[WorkerParts, ServiceSet], None],
    add_reader: AddReader,
    read_token_table: ReadTokenTable,
) -> int:
    """Serve until SIGTERM or SIGINT, then drain and return 0.

    Returns 1 if the engine broke, or the directory refuses the worker.
    Raises ConfigError or ModelLoadError: it cannot start as configured.
    """
    config = replace(config, ranks=placed_ranks(config.ranks, os.environ))
    if reads_whole_texts(config.model.folder):
        check_reader(config, role)
        return await _run_reader(config, role, add_reader)
    check_worker(config, role)
    token = _token(config)
    if config.ranks.node_rank:
        return follow_node_0(config, role, token)
    return await _lead_lives(
        config, role, token, add_services=add_services, read_token_table=read_token_table
    )


async def _lead_lives(
    config: WorkerConfig,
    role: Role,
    token: ClusterToken | None,
    *,
    add_services: Callable[[WorkerParts, ServiceSet], None],
    read_token_table: ReadTokenTable,
) -> int:
    """Do as `run_worker`, with all ranks, of which this process is the first."""
    stopping = _stopped_by_signals()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(following([token.file] if token else []))
        events = await stack.enter_async_context(open_publisher(config))
        leader = await _lead(config, role, token, stopping, stack)
        if leader is None and stopping.is_set():
            return 0  # before all hosts were there
        lifecycle = Lifecycle(config, leader)
        adapters = await _load_first(config, lifecycle, stack)
        lease = _share_cores(config, lifecycle, stack)
        certificates = open_certificates(config.tls, PeerRole(role.value))
        server = _server(role, _served(config, role), token, certificates)
        profiling = Profiling(lifecycle, config.profiler_dir, config.name)
        stack.push_async_callback(server.stop, 0)
        ending = await _live(
            Site(
                config=config,
                preference=Preference(role),
                lifecycle=lifecycle,
                adapters=adapters,
                followers=lifecycle.followers,
                lease=lease,
                profiling=profiling,
                server=server,
                switch=_switch(server, LifecycleServicer(lifecycle, profiling)),
                add_services=add_services,
                read_token_table=read_token_table,
                events=events,
                token=token,
                certificates=certificates,
                stopping=stopping,
            )
        )
    log.info("stopped", name=config.name)
    return EXIT_BROKEN if ending is Ending.BROKEN else 0


class _ToldToEndError(Exception):
    """A signal came while the worker waited for other hosts."""


async def _lead(
    config: WorkerConfig,
    role: Role,
    token: ClusterToken | None,
    stopping: asyncio.Event,
    stack: AsyncExitStack,
) -> RankLeader | None:
    """Start the other ranks, which end with the stack; None: there are none.

    Those of other hosts are waited for until `stopping` is set; it is set when such a host is to
    end.
    """
    if config.ranks.size == 1:
        return None
    loop = asyncio.get_running_loop()

    def check() -> None:
        if stopping.is_set():
            raise _ToldToEndError

    def stop() -> None:
        loop.call_soon_threadsafe(stopping.set)

    try:
        leader = await asyncio.to_thread(
            partial(
                RankLeader,
                config.ranks,
                log_settings(config, role),
                own=own_node(config, token),
                check=check,
                on_leaving=stop,
            )
        )
    except _ToldToEndError:
        return None
    stack.callback(leader.close)
    return leader


async def _load_first(
    config: WorkerConfig, lifecycle: Lifecycle, stack: AsyncExitStack
) -> WorkerAdapters:
    """Load the weights, and the adapters, that the settings name; return the adapters.

    Raises:
        ConfigError, ModelLoadError: one of them cannot be used.
    """
    adapters = open_adapters(config)
    await lifecycle.load_first()
    if adapters.store is not None:
        stack.callback(adapters.store.close)
        assert lifecycle.weights is not None  # they were loaded just now
        attach(adapters.store, lifecycle.weights.loaded, config.engine)
        await asyncio.to_thread(adapters.load_modules)
    return adapters


def _share_cores(
    config: WorkerConfig, lifecycle: Lifecycle, stack: AsyncExitStack
) -> CoreLease | None:
    """Join the workers of this host that lend each other cores, until the stack closes."""
    assert lifecycle.weights is not None  # they were loaded just now
    lease = open_lease(config, lifecycle.weights.loaded)
    if lease is not None:
        stack.callback(lease.close)
    return lease


def _switch(server: RpcServer, orders: LifecycleServicer) -> ServiceSwitch:
    """Let a server take orders; return the place of the services of each life."""
    switch = ServiceSwitch()
    server.server.add_generic_rpc_handlers((switch,))
    lifecycle_pb2_grpc.add_LifecycleServicer_to_server(orders, server.server)
    return switch


async def _run_reader(config: WorkerConfig, role: Role, add_reader: AddReader) -> int:
    """Do as `run_worker` with a model that reads whole texts."""
    token = _token(config)
    stopping = _stopped_by_signals()
    async with following([] if token is None else [token.file]):
        certificates = open_certificates(config.tls, PeerRole(role.value))
        ending = await read_life(
            config,
            _server(role, [role], token, certificates),
            add_service=add_reader,
            stopping=stopping,
            token=token,
            certificates=certificates,
        )
    log.info("stopped", name=config.name)
    return EXIT_BROKEN if ending is Ending.BROKEN else 0


def _token(config: WorkerConfig) -> ClusterToken | None:
    path = config.access.cluster_token
    return None if path is None else ClusterToken(path)


def _stopped_by_signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set from now on."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    return stopping


async def _live(site: Site) -> Ending:
    """Live one life after the other until the process is to end."""
    lifecycle = site.lifecycle
    last = await serve_life(site)
    ending = last.ending
    while ending is Ending.TURNED:
        lifecycle.turned()
        await asyncio.to_thread(site.followers.keep, lifecycle.fingerprints)
        # Reference cycles keep an engine's and a model's memory otherwise.
        gc.collect()
        give_back_free()
        if lifecycle.replaces(last.fingerprint):
            namespace = bytes.fromhex(last.record.namespace)
            await asyncio.to_thread(forget_disk, site.config.engine, namespace)
        if lifecycle.stage is Stage.SERVING:
            last = await serve_life(site)
            ending = last.ending
        else:
            ending = await sleep_life(site, last)
    return ending


def _served(config: WorkerConfig, role: Role) -> frozenset[Role]:
    return served_roles(config, role, config.model.changed(config.model.folder))


def _server(
    role: Role,
    served: Collection[Role],
    token: ClusterToken | None,
    certificates: CertificateFiles | None,
) -> RpcServer:
    services = sorted(ROLE_SERVICES[each] for each in served)
    guard = None if token is None else AuthInterceptor({}, default=token.check)
    tls = None
    if certificates is not None:
        tls = ServerTls(files=certificates, role=PeerRole(role.value))
    return RpcServer((*services, *WORKER_SERVICES), guard=guard, tls=tls)
