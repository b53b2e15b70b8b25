"""A router whose tenants are told by the request's id: `gold-17` is of the tenant gold.

The same parts as services/router, without keys: `python -m benchmarks.overload.router --model …`.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import uvloop
from prometheus_client import CollectorRegistry

from baton.v1 import directory_pb2_grpc
from services.router.__main__ import limited, settle_memory
from services.router.config import RouterConfig
from services.router.directory_servicer import DirectoryServicer
from services.router.http_server import HttpServer
from services.router.metrics import MeteredGenerator, observe_state
from services.router.openai.app import create_app
from services.router.openai.backend import Backend
from services.router.parts import open_parts
from services.router.tenant import Tenant
from shared.config import load_config
from shared.rpc.server import RpcServer
from shared.telemetry.logs import configure_logs
from shared.version import VERSION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from services.router.generation import AnswerPiece, GenerationRequest, Generator

#: Who takes part in the race for a crowded cluster, and the share that each should get.
WEIGHTS = {"gold": 2.0, "iron": 1.0}
TENANTS = {name: Tenant(name=name, weight=weight) for name, weight in WEIGHTS.items()}


class TenantById:
    """Gives each request its tenant; ids without a known name stay anonymous."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    def generate(self, request: GenerationRequest) -> AsyncIterator[AnswerPiece]:
        """See Generator. The HTTP front end has put its own prefix before the client's id."""
        name = request.request_id.removeprefix("cmpl-").partition("-")[0]
        tenant = TENANTS.get(name, request.tenant)
        return self._generator.generate(replace(request, tenant=tenant))


async def serve(config: RouterConfig) -> None:
    """Serve until SIGTERM."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with open_parts(config) as parts:
        metrics = CollectorRegistry()
        observe_state(parts, metrics)
        generator = TenantById(
            MeteredGenerator(limited(config, parts, metrics), metrics, model=parts.models.names[0])
        )
        rpc = RpcServer(("baton.v1.Directory",))
        directory_pb2_grpc.add_DirectoryServicer_to_server(
            DirectoryServicer(parts.registry, parts.blocks), rpc.server
        )
        await rpc.start(f"{config.host}:{config.grpc_port}")
        backend = Backend(
            generator=generator,
            tokenizer=parts.tokenizer,
            chat_template=parts.chat_template,
            models=parts.models,
        )
        app = create_app(
            backend,
            not_ready_because=parts.endpoints.not_ready_because,
            registry=metrics,
            version=VERSION,
            rate_headers=parts.limits.headers,
        )
        http = HttpServer(app, drain_grace_s=config.drain_grace_s)
        settle_memory()
        await http.start(config.host, config.port)
        await stopping.wait()
        await asyncio.gather(http.stop(), rpc.stop(config.drain_grace_s))


if __name__ == "__main__":
    _config = load_config(RouterConfig, sys.argv[1:], prog="python -m benchmarks.overload.router")
    configure_logs(service="router", level=_config.log_level, as_json=_config.log_format == "json")
    uvloop.run(serve(_config))
