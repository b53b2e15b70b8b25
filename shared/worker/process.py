"""The life of a worker process: load, serve, drain, leave.

services/prefill and services/decode differ in the service that they add; the rest is here.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import structlog

from baton.v1 import transfer_pb2_grpc, worker_pb2_grpc
from shared.config import load_config
from shared.errors import ConfigError, ModelLoadError
from shared.rpc.auth import AuthInterceptor, ClusterToken
from shared.rpc.server import RpcServer
from shared.rpc.tls.identity import PeerRole
from shared.rpc.tls.server import ServerTls
from shared.rpc.watched_file import following
from shared.telemetry.logs import configure_logs
from shared.telemetry.vllm_names import WORKER_NAMES, exposed_metrics
from shared.worker.checks import check_worker
from shared.worker.health.liveness import Liveness, Watchdog
from shared.worker.health.metrics_server import serve_metrics
from shared.worker.health.self_check import SelfCheck
from shared.worker.join.drain import drain
from shared.worker.join.joining import join, leave, open_places, reason_of
from shared.worker.kv_events import publish_kv_events
from shared.worker.parts import WorkerParts, open_parts
from shared.worker.peers.transfer_servicer import TransferServicer
from shared.worker.statistics_log import StatisticsLog
from shared.worker.worker_servicer import WorkerServicer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.identity import Role
    from shared.worker.config import WorkerConfig
    from shared.worker.parts import ReadTokenTable

log = structlog.get_logger(__name__)

EXIT_BROKEN = 1
EXIT_USAGE = 2
WORKER_SERVICES = ("baton.v1.Worker", "baton.v1.Transfer")


class HasWorkerConfig(Protocol):
    """A role's settings: the worker's, and those of the role."""

    @property
    def worker(self) -> WorkerConfig:
        """The settings of all workers."""
        ...


C = TypeVar("C", bound=HasWorkerConfig)
AddService = Callable[[C, WorkerParts, RpcServer], None]


def main(
    config_type: type[C],
    role: Role,
    *,
    argv: Sequence[str],
    service: str,
    add_service: AddService[C],
    read_token_table: ReadTokenTable,
) -> int:
    """Run a worker until it is told to stop; return the exit code.

    `add_service` adds the role's own servicer, called `service` on the wire. `read_token_table`
    reads the tokens of a model's folder: workers need them for grammars, and use no tokenizer
    otherwise.
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
                service=service,
                add_service=partial(add_service, config),
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
    service: str,
    add_service: Callable[[WorkerParts, RpcServer], None],
    read_token_table: ReadTokenTable,
) -> int:
    """Serve until SIGTERM or SIGINT, then drain and return 0.

    Returns 1 if the engine broke, or the directory refuses the worker.

    Raises:
        ConfigError, ModelLoadError: the worker cannot start as configured.
    """
    check_worker(config, role)
    path = config.access.cluster_token
    token = None if path is None else ClusterToken(path)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(following([] if token is None else [token.file]))
        parts = await stack.enter_async_context(
            open_parts(config, role, token=token, read_token_table=read_token_table)
        )
        guard = None if token is None else AuthInterceptor({}, default=token.check)
        tls = None
        if parts.certificates is not None:
            tls = ServerTls(files=parts.certificates, role=PeerRole(role.value))
        server = RpcServer((service, *WORKER_SERVICES), guard=guard, tls=tls)
        add_service(parts, server)
        _add_worker_services(parts, server)
        watchdog = Watchdog(parts.engine.progress, stall_s=config.engine_stall_s)
        await server.start(f"{config.host}:{config.port}")
        stack.push_async_callback(server.stop, 0)
        _serve_metrics(parts, stack)
        await publish_kv_events(parts, stack)
        address = config.address(server.port)
        _stay_alive(parts, server, watchdog, stack)
        joined = [
            join(parts, address, place, watchdog, stack)
            for place in open_places(parts, stack, token=token)
        ]
        log.info("ready", worker=str(parts.worker), address=address)
        healthy = await _until(stopping, parts, [one.task for one in joined])
        await drain(parts, config.drain_grace_s if healthy else 0)
        await asyncio.gather(*(leave(one) for one in joined))
    log.info("stopped", worker=str(parts.worker))
    return 0 if healthy else EXIT_BROKEN


def _add_worker_services(parts: WorkerParts, server: RpcServer) -> None:
    transfer_pb2_grpc.add_TransferServicer_to_server(
        TransferServicer(
            worker=parts.worker,
            info=parts.peer_info,
            connectors=parts.connectors,
            engine=parts.engine,
        ),
        server.server,
    )
    worker_pb2_grpc.add_WorkerServicer_to_server(
        WorkerServicer(
            info=parts.describe(),
            engine=parts.engine,
            gate=parts.gate,
            num_open_transfers=lambda: parts.transfers.num_open,
            releases=parts.releases,
        ),
        server.server,
    )


def _serve_metrics(parts: WorkerParts, stack: AsyncExitStack) -> None:
    """Serve metrics until the stack closes, if a port is set."""
    config = parts.config
    if config.metrics_port:
        metrics = exposed_metrics(
            parts.metrics,
            config.metrics_names,
            repeated=WORKER_NAMES,
            model=config.model.name,
            engine=config.name,
        )
        stop = serve_metrics(
            metrics, config.host, config.metrics_port, is_serving=lambda: parts.gate.is_open
        )
        stack.callback(stop)


def _stay_alive(
    parts: WorkerParts, server: RpcServer, watchdog: Watchdog, stack: AsyncExitStack
) -> None:
    """Watch the engine until the stack closes, and let health checks report the gate's state."""
    config = parts.config
    liveness = Liveness(
        engine=parts.engine,
        gate=parts.gate,
        watchdog=watchdog,
        check=SelfCheck(parts.engine, timeout_s=config.engine_stall_s),
        check_interval_s=config.self_check_interval_s,
        metrics=parts.metrics,
    )
    tasks = {asyncio.create_task(liveness.run())}
    if not config.disable_log_stats:
        tasks.add(asyncio.create_task(StatisticsLog(parts.engine.stats).run()))

    def report() -> None:
        tasks.add(asyncio.create_task(server.set_serving(serving=parts.gate.is_open)))

    async def end() -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    parts.gate.on_change(report)
    parts.gate.on_leave = parts.releases.ended
    stack.push_async_callback(end)


async def _until(
    stopping: asyncio.Event, parts: WorkerParts, memberships: Sequence[asyncio.Task[None]]
) -> bool:
    """Wait for a signal (True), or for the engine's end or a refusal (False)."""
    broken = asyncio.create_task(parts.engine.wait_broken())
    stopped = asyncio.create_task(stopping.wait())
    await asyncio.wait({broken, stopped, *memberships}, return_when=asyncio.FIRST_COMPLETED)
    for task in (broken, stopped):
        task.cancel()
    if stopping.is_set():
        return True
    for task in memberships:
        if task.done():
            log.error("directory_refuses", worker=str(parts.worker), error=reason_of(task))
            return False
    log.error("engine_broken", worker=str(parts.worker))
    return False
