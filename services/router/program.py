"""The router program: read the settings, wire the parts, listen."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
import uvloop
from prometheus_client import CollectorRegistry

from baton.v1 import directory_pb2_grpc, router_pb2_grpc
from services.router.catalogue.readiness import Readiness
from services.router.config import RouterConfig
from services.router.dashboard.routes import Dashboard
from services.router.dashboard.state import DashboardState
from services.router.doors.app import create_app
from services.router.doors.http_server import HttpServer
from services.router.front import Front
from services.router.grpc.directory_servicer import DirectoryServicer
from services.router.grpc.health import reporting_health
from services.router.grpc.server import RouterServicer
from services.router.openai.responses_api.stored.open import open_keeper
from services.router.operated import OperatedCluster
from services.router.parts import open_parts
from services.router.processes.program import catch_up, run_processes
from services.router.security import DIRECTORY_SERVICE, ROUTER_SERVICE, open_security
from services.router.watch.metrics import observe_state
from shared.config import load_config
from shared.errors import ConfigError
from shared.rpc.cancellation import running
from shared.rpc.server import RpcServer
from shared.rpc.tls.files import open_certificates
from shared.rpc.tls.https import open_https
from shared.rpc.tls.identity import PeerRole
from shared.rpc.tls.server import ServerTls, https_context
from shared.rpc.watched_file import following
from shared.telemetry.logs import configure_logs
from shared.telemetry.tracing_settings import open_tracer
from shared.telemetry.vllm_names import ROUTER_NAMES, exposed_metrics
from shared.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager
    from ssl import SSLContext

    from fastapi import FastAPI

    from services.router.admission.keys.key_ring import KeyRing
    from services.router.openai.catalogue import Catalogue
    from services.router.openai.responses_api.stored.keeper import ResponseKeeper
    from services.router.parts import RouterParts
    from services.router.processes.process import RouterProcess
    from services.router.security import RouterSecurity
    from shared.rpc.tls.files import CertificateFiles
    from shared.telemetry.tracing import Tracer

log = structlog.get_logger(__name__)

SERVICES = (ROUTER_SERVICE, DIRECTORY_SERVICE)
EXIT_USAGE = 2
#: Arguments of gc.set_threshold.
GC_THRESHOLDS = (20_000, 20, 50)


async def serve(
    config: RouterConfig,
    *,
    process: RouterProcess | None = None,
    on_serving: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM or SIGINT, then let running requests finish.

    `process`: this one, if the router has several. `on_serving` is called when its ports are open.

    Raises:
        ConfigError: the router cannot start as configured.
    """
    security = open_security(config)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(following(security.files))
        certificates = open_certificates(config.tls, PeerRole.ROUTER)
        parts = await stack.enter_async_context(
            open_parts(
                config,
                token=security.token,
                certificates=certificates,
                name=_instance(),
                process=process,
            )
        )
        tracer = _tracer(stack)
        keeper = await stack.enter_async_context(_keeper(config))
        doors = _doors(config, parts, security, certificates, tracer, keeper, stopping, process)
        if process is not None:
            await catch_up(process, parts.usable_workers, stopping=stopping)
            await stack.enter_async_context(running(doors.readiness.tell_others()))
        rpc, http = doors.rpc, doors.http
        await rpc.start(*config.grpc_addresses, serving=False)
        stack.push_async_callback(rpc.stop, 0)
        settle_memory()
        await _start_http(http, config, process)
        doors.dashboard.feed.start()
        log.info("listening", http_port=http.port, grpc_port=rpc.port, models=parts.model_names)
        on_serving()
        async with reporting_health(rpc, doors.readiness):
            await _until(stopping, parts, process)
        log.info("stopping", num_requests=parts.num_inside)
        await doors.dashboard.feed.stop()
        await rpc.set_serving(serving=False)
        await asyncio.gather(http.stop(), rpc.stop(config.drain_grace_s))
    log.info("stopped")


async def _start_http(
    http: HttpServer, config: RouterConfig, process: RouterProcess | None
) -> None:
    await http.start(
        config.host,
        config.port,
        share_port=_shares(config, process),
        own_port=config.own_port,
        share_own_port=process is not None,
    )


@dataclass(frozen=True, slots=True)
class _Doors:
    """What stands before the parts. Its ports are not open yet."""

    rpc: RpcServer
    http: HttpServer
    dashboard: Dashboard
    readiness: Readiness


def _doors(
    config: RouterConfig,
    parts: RouterParts,
    security: RouterSecurity,
    certificates: CertificateFiles | None,
    tracer: Tracer | None,
    keeper: ResponseKeeper | None,
    stopping: asyncio.Event,
    process: RouterProcess | None,
) -> _Doors:
    keys = security.keys
    metrics = _metrics(parts, keys)
    page = DashboardState(parts, name=_instance(), version=VERSION, process=process)
    dashboard = Dashboard(page)
    front = Front(config, parts, metrics, tracer=tracer, page=page, keeper=keeper, process=process)
    catalogue = front.catalogue()
    readiness = Readiness(parts.pools, None if process is None else process.others)
    cluster = OperatedCluster(config, parts, process)
    rpc = _rpc_server(config, parts, catalogue, cluster, security, certificates, tracer, process)
    http = HttpServer(
        _http_app(
            config,
            parts,
            catalogue,
            readiness,
            metrics,
            keys,
            stopping,
            tracer,
            dashboard,
            cluster,
            process,
        ),
        drain_grace_s=config.drain_grace_s,
        tls=_https(config, certificates),
        limits=config.limits,
    )
    return _Doors(rpc, http, dashboard, readiness)


def _metrics(parts: RouterParts, keys: KeyRing | None) -> CollectorRegistry:
    metrics = CollectorRegistry()
    observe_state(parts, metrics)
    if keys is not None:
        metrics.register(keys)
    return metrics


def _tracer(stack: AsyncExitStack) -> Tracer | None:
    """Return the tracer of the environment, which the stack closes."""
    tracer = open_tracer("router", instance=_instance(), environ=os.environ)
    if tracer is not None:
        stack.push_async_callback(tracer.close)
    return tracer


def _keeper(config: RouterConfig) -> AbstractAsyncContextManager[ResponseKeeper | None]:
    return open_keeper(
        config.responses,
        redis_url=config.redis_url,
        redis_password_file=config.redis_password_file,
    )


def _http_app(
    config: RouterConfig,
    parts: RouterParts,
    catalogue: Catalogue,
    readiness: Readiness,
    metrics: CollectorRegistry,
    keys: KeyRing | None,
    stopping: asyncio.Event,
    tracer: Tracer | None,
    dashboard: Dashboard,
    cluster: OperatedCluster,
    process: RouterProcess | None,
) -> FastAPI:
    def not_ready_because() -> Sequence[str]:
        if stopping.is_set():
            return ["the router is stopping"]
        return readiness.not_ready_because()

    exposed = exposed_metrics(
        metrics,
        config.metrics_names,
        repeated=ROUTER_NAMES,
        model=parts.pools[0].name,
        engine="0",
    )
    if process is not None:
        process.show(exposed)
    return create_app(
        catalogue,
        not_ready_because=not_ready_because,
        notes=readiness.notes,
        registry=exposed,
        whole_metrics=None if process is None else process.whole,
        version=VERSION,
        cluster=cluster,
        rate_headers=parts.limits.headers,
        keys=keys,
        open_metrics=config.access.open_metrics,
        traced=tracer is not None,
        dashboard=dashboard,
        cors=config.cors,
        has_docs=not config.disable_fastapi_docs,
    )


def _https(config: RouterConfig, certificates: CertificateFiles | None) -> SSLContext | None:
    if config.https.https_cert is not None:
        return open_https(config.https)
    if certificates is None:
        return None
    return https_context(certificates, require_client=config.tls_client_certs)


def _instance() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


def settle_memory() -> None:
    """Exempt all objects that exist now from garbage collection, and collect less often.

    With a thousand open streams, a full collection stops all of them for tens of milliseconds.
    Reference counts free what requests leave behind, so a search for cycles is seldom useful.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _shares(config: RouterConfig, process: RouterProcess | None) -> bool:
    """Return whether others listen on the ports as well."""
    return config.share_ports or process is not None


async def _until(
    stopping: asyncio.Event, parts: RouterParts, process: RouterProcess | None
) -> None:
    """Wait for a stop signal, or for the end of the router's hub.

    Raises the error of the task that follows the workers if it ends.
    """
    ends = [asyncio.create_task(stopping.wait())]
    if process is not None:
        ends.append(asyncio.create_task(process.is_cut_off.wait()))
    await asyncio.wait({*ends, parts.following}, return_when=asyncio.FIRST_COMPLETED)
    for end in ends:
        end.cancel()
    if parts.following.done():
        parts.following.result()


def _rpc_server(
    config: RouterConfig,
    parts: RouterParts,
    catalogue: Catalogue,
    cluster: OperatedCluster,
    security: RouterSecurity,
    certificates: CertificateFiles | None,
    tracer: Tracer | None,
    process: RouterProcess | None,
) -> RpcServer:
    tls = None
    if certificates is not None:
        public = not config.tls_client_certs
        tls = ServerTls(files=certificates, role=PeerRole.ROUTER, public=public)
    limits = config.limits
    rpc = RpcServer(
        SERVICES,
        share_port=_shares(config, process),
        max_message_bytes=limits.max_grpc_message_bytes,
        max_streams=limits.max_grpc_streams,
        guard=security.guard(),
        tls=tls,
    )
    router = RouterServicer(
        catalogue,
        rate_headers=parts.limits.headers,
        caller_of=security.caller_of_call,
        traced=tracer is not None,
        adapters=cluster.fleet_of,
        has_keys=security.keys is not None,
    )
    router_pb2_grpc.add_RouterServicer_to_server(router, rpc.server)
    directory = DirectoryServicer(parts.registry, parts.blocks, refused=parts.refused)
    if process is not None and config.redis_url is None:
        directory.share(process)
    directory_pb2_grpc.add_DirectoryServicer_to_server(directory, rpc.server)
    return rpc


def main(argv: Sequence[str]) -> int:
    """Run the router until it is told to stop; return the exit code."""
    exit_code = 0

    def run() -> None:
        nonlocal exit_code
        config = load_config(RouterConfig, argv, prog="baton serve router")
        configure_logs(
            service="router", level=config.log_level, as_json=config.log_format == "json"
        )
        if config.router_processes == 1:
            uvloop.run(serve(config))
        else:
            exit_code = run_processes(config, serve, guarded=_guarded)

    return _guarded(run) or exit_code


def _guarded(run: Callable[[], None]) -> int:
    """Run a process; return its exit code."""
    try:
        run()
    except ConfigError as error:
        sys.stderr.write(f"router cannot start: {error}\n")
        return EXIT_USAGE
    # The router has stopped in order: a second signal at exit must not change the exit code.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return 0
