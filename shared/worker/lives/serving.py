"""A life with an engine: serve, drain, leave."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

import structlog

from baton.v1 import transfer_pb2_grpc, worker_pb2_grpc
from shared.errors import UnavailableError
from shared.rpc.service_switch import ServiceSet
from shared.telemetry.vllm_names import WORKER_NAMES, exposed_metrics
from shared.worker.health.liveness import Liveness, Watchdog
from shared.worker.health.metrics_server import serve_metrics
from shared.worker.health.self_check import SelfCheck
from shared.worker.join.drain import drain
from shared.worker.join.joining import join, leave, member_of, open_places, reason_of
from shared.worker.kv_events.published_cache import published_cache
from shared.worker.lifecycle.lifecycle import Life
from shared.worker.lifecycle.pause import END_S
from shared.worker.lifecycle.stage import Ending
from shared.worker.lives.site import LastLife
from shared.worker.parts import open_parts
from shared.worker.peers.transfer_servicer import TransferServicer
from shared.worker.statistics_log import begin_statistics
from shared.worker.worker_servicer import WorkerServicer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.rpc.server import RpcServer
    from shared.worker.lives.site import Site
    from shared.worker.parts import WorkerParts

log = structlog.get_logger(__name__)


async def serve_life(site: Site) -> LastLife:
    """Serve until a signal, an order or a failure ends this life.

    Raises:
        ConfigError: the worker cannot start as configured.
    """
    config, lifecycle = site.config, site.lifecycle
    assert lifecycle.weights is not None  # they are loaded before a life begins
    async with AsyncExitStack() as stack:
        parts = await stack.enter_async_context(
            open_parts(
                config,
                site.preference,
                weights=lifecycle.weights,
                adapters=site.adapters,
                followers=site.followers,
                lease=site.lease,
                read_token_table=site.read_token_table,
                token=site.token,
                certificates=site.certificates,
            )
        )
        services = ServiceSet(site.server)
        site.add_services(parts, services)
        _add_worker_services(parts, services)
        site.switch.put(services)
        watchdog = Watchdog(parts.engine.progress, stall_s=config.engine_stall_s)
        address = await site.open()
        stack.push_async_callback(site.close, ServiceSet(site.server))
        _serve_metrics(parts, stack)
        await _publish_events(site, parts, stack)
        _stay_alive(parts, site.server, watchdog, stack)
        member = member_of(parts, address, watchdog)
        places = open_places(config, parts.worker, parts.channels, stack, token=site.token)
        joined = [join(member, place, stack) for place in places]
        log.info("ready", worker=str(parts.worker), address=address)
        lifecycle.arrived(Life(parts.worker, parts.engine, parts.gate))
        ending = await _until(site, parts, [one.task for one in joined])
        if ending is not Ending.BROKEN:
            await site.profiling.end_life()
        await drain(parts, config.drain_grace_s if ending is Ending.STOPPED else 0)
        parts.gate.over.set()
        if ending is Ending.TURNED:
            await parts.gate.wait_empty(END_S)
        await asyncio.gather(*(leave(one) for one in joined))
        fingerprint = parts.peer_info.model_fingerprint
        if ending is Ending.TURNED and lifecycle.replaces(fingerprint):
            await _forget_blocks(parts)
        return LastLife(ending, member.record, parts.layout.format, fingerprint)


async def _forget_blocks(parts: WorkerParts) -> None:
    """Spend no time on saving what other weights cannot use."""
    with suppress(UnavailableError):
        await parts.engine.reset_prefix_cache()


def _add_worker_services(parts: WorkerParts, services: ServiceSet) -> None:
    transfer_pb2_grpc.add_TransferServicer_to_server(
        TransferServicer(
            info=parts.peer_info,
            endpoints=parts.endpoints,
            recipients=parts.recipients,
            engine=parts.engine,
        ),
        services.server,
    )
    worker_pb2_grpc.add_WorkerServicer_to_server(
        WorkerServicer(
            info=parts.describe(),
            engine=parts.engine,
            gate=parts.gate,
            num_open_transfers=lambda: parts.transfers.num_open,
            releases=parts.releases,
            adapters=parts.adapters,
            roles=parts.roles,
        ),
        services.server,
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


async def _publish_events(site: Site, parts: WorkerParts, stack: AsyncExitStack) -> None:
    """Publish the cache's changes until the stack closes, if the settings ask for it."""
    if site.events is not None and parts.contents is not None:
        await stack.enter_async_context(
            published_cache(
                site.events,
                parts.engine,
                parts.contents,
                layout=parts.layout,
                adapter_name=parts.adapters.name_of,
            )
        )


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
    tasks |= begin_statistics(parts.engine.stats, is_disabled=config.disable_log_stats)

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
    site: Site, parts: WorkerParts, memberships: Sequence[asyncio.Task[None]]
) -> Ending:
    """Wait for a signal, an order, the engine's end, or a refusal of the directory."""
    broken = asyncio.create_task(parts.engine.wait_broken())
    stopped = asyncio.create_task(site.stopping.wait())
    turning = asyncio.create_task(site.lifecycle.turning.wait())
    own = (broken, stopped, turning)
    await asyncio.wait({*own, *memberships}, return_when=asyncio.FIRST_COMPLETED)
    for task in own:
        task.cancel()
    if site.stopping.is_set():
        return Ending.STOPPED
    for task in memberships:
        if task.done():
            log.error("directory_refuses", worker=str(parts.worker), error=reason_of(task))
            return Ending.BROKEN
    if site.lifecycle.turning.is_set():
        return Ending.TURNED
    log.error("engine_broken", worker=str(parts.worker))
    return Ending.BROKEN
