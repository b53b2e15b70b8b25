"""Starts the router: reads its settings, wires its parts, listens."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import structlog
import uvloop
from prometheus_client import CollectorRegistry

from baton.v1 import directory_pb2_grpc, router_pb2_grpc
from services.router.config import RouterConfig
from services.router.directory_servicer import DirectoryServicer
from services.router.grpc_server import RouterServicer
from services.router.http_server import HttpServer
from services.router.metrics import MeteredGenerator, observe_state
from services.router.openai.app import create_app
from services.router.openai.backend import Backend
from services.router.parts import open_parts
from shared.config import load_config
from shared.errors import ConfigError
from shared.rpc.server import RpcServer
from shared.telemetry.logs import configure_logs
from shared.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.generation import Generator
    from services.router.parts import RouterParts

log = structlog.get_logger(__name__)

SERVICES = ("baton.v1.Router", "baton.v1.Directory")
EXIT_USAGE = 2
#: Objects, then collections of the generation before, between two collections.
GC_THRESHOLDS = (20_000, 20, 50)


async def serve(config: RouterConfig) -> None:
    """Serve until SIGTERM or SIGINT, then let running requests finish.

    Raises:
        ConfigError: the router cannot start as configured.
    """
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with AsyncExitStack() as stack:
        parts = await stack.enter_async_context(open_parts(config))
        metrics = CollectorRegistry()
        observe_state(parts, metrics)
        generator = MeteredGenerator(parts.pipeline, metrics, model=parts.models.names[0])
        rpc = _rpc_server(parts, generator, config)
        ports = [port for port in (config.grpc_port, config.own_grpc_port) if port is not None]
        await rpc.start(*(f"{config.host}:{port}" for port in ports))
        stack.push_async_callback(rpc.stop, 0)
        http = HttpServer(
            create_app(
                Backend(
                    generator=generator,
                    tokenizer=parts.tokenizer,
                    chat_template=parts.chat_template,
                    models=parts.models,
                    explainer=parts.planner,
                    limits=config.limits,
                ),
                not_ready_because=parts.endpoints.not_ready_because,
                registry=metrics,
                version=VERSION,
            ),
            drain_grace_s=config.drain_grace_s,
            limits=config.limits,
        )
        settle_memory()
        await http.start(
            config.host, config.port, share_port=config.share_ports, own_port=config.own_port
        )
        log.info("listening", http_port=http.port, grpc_port=rpc.port, models=parts.models.names)
        await _until(stopping, parts)
        log.info("stopping", num_requests=parts.admission.num_inside)
        await rpc.set_serving(serving=False)
        await asyncio.gather(http.stop(), rpc.stop(config.drain_grace_s))
    log.info("stopped")


def settle_memory() -> None:
    """What has been loaded stays: the garbage collector need not look at it again.

    With a thousand open streams a full collection stops all of them for tens of milliseconds; what
    requests leave behind is freed by its counts, so a search for cycles is seldom worth it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


async def _until(stopping: asyncio.Event, parts: RouterParts) -> None:
    """Wait for a signal. A router that no longer sees its workers must not go on."""
    stopped = asyncio.create_task(stopping.wait())
    await asyncio.wait({stopped, parts.following}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if parts.following.done():
        parts.following.result()


def _rpc_server(parts: RouterParts, generator: Generator, config: RouterConfig) -> RpcServer:
    limits = config.limits
    rpc = RpcServer(
        SERVICES,
        share_port=config.share_ports,
        max_message_bytes=limits.max_grpc_message_bytes,
        max_streams=limits.max_grpc_streams,
    )
    router = RouterServicer(
        generator=generator,
        tokenizer=parts.tokenizer,
        chat_template=parts.chat_template,
        models=parts.models,
        limits=limits,
    )
    router_pb2_grpc.add_RouterServicer_to_server(router, rpc.server)
    directory_pb2_grpc.add_DirectoryServicer_to_server(
        DirectoryServicer(parts.registry, parts.blocks), rpc.server
    )
    return rpc


def main(argv: Sequence[str]) -> int:
    """Run the router until it is told to stop; returns the exit code."""
    try:
        config = load_config(RouterConfig, argv, prog="python -m services.router")
        configure_logs(service="router", level=config.log_level, as_json=config.log_json)
        uvloop.run(serve(config))
    except ConfigError as error:
        sys.stderr.write(f"router cannot start: {error}\n")
        return EXIT_USAGE
    # It has stopped in order: a second signal while the interpreter ends must not say otherwise.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
