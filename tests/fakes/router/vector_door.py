"""The router's vectors over HTTP and gRPC, as services/router/program.py wires them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
from prometheus_client import CollectorRegistry

from baton.v1 import router_pb2_grpc
from services.router.doors.app import create_app
from services.router.front import Front
from services.router.grpc.server import RouterServicer
from services.router.openai.catalogue import one_model
from shared.rpc.server import RpcServer
from tests.fakes.worker.poolers import PoolWorker, TokenPooler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from services.router.admission.caller import Caller
    from tests.integration.router.conftest import Bench

URL = "/v1/embeddings"


class Door:
    """The router's HTTP API with its vectors, as services/router/program.py wires them."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.registry = CollectorRegistry()
        parts = bench.parts
        front = Front(bench.config, parts.router, self.registry)
        self.backend = front.backend(parts.pool, parts.served)
        self.app = create_app(
            one_model(self.backend),
            not_ready_because=parts.endpoints.not_ready_because,
            registry=self.registry,
            version="test",
        )
        transport = httpx.ASGITransport(app=self.app)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://router")

    async def ask(self, url: str = URL, **body: Any) -> dict[str, Any]:
        response = await self.http.post(url, json=body)
        assert response.status_code == 200, response.text
        reply: dict[str, Any] = response.json()
        return reply

    async def refusal(self, url: str = URL, status: int = 400, **body: Any) -> dict[str, Any]:
        response = await self.http.post(url, json=body)
        assert response.status_code == status, response.text
        error: dict[str, Any] = response.json()["error"]
        return error

    def ids(self, text: str) -> list[int]:
        return self.bench.parts.tokenizer.encode(text)

    def metric(self, name: str, **labels: str) -> float:
        return (
            self.registry.get_sample_value(f"baton_{name}", {"model_name": "tiny", **labels}) or 0
        )

    @asynccontextmanager
    async def grpc(self, caller: Caller | None = None) -> AsyncIterator[str]:
        """Serve the Router service; its address. Every call comes from `caller`, if it is given."""
        server = RpcServer(["baton.v1.Router"])
        more = {} if caller is None else {"caller_of": lambda _metadata: caller}
        servicer = RouterServicer(one_model(self.backend), **more)
        router_pb2_grpc.add_RouterServicer_to_server(servicer, server.server)
        await server.start("127.0.0.1:0")
        try:
            yield f"127.0.0.1:{server.port}"
        finally:
            await server.stop(0)


async def joined(
    door: Door, *names: str, pooler: TokenPooler | None = None, is_only: bool = True
) -> list[PoolWorker]:
    workers = []
    for name in names or ("prefill-0",):
        worker = PoolWorker(name, pooler or TokenPooler(), is_only=is_only)
        await worker.join(door.bench)
        workers.append(worker)
    return workers


async def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition` is true."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 a task of the router changes it
            await asyncio.sleep(0.01)


def close(found: Any, wanted: Any) -> bool:
    """Whether vectors are equal but for rounding."""
    return bool(np.allclose(np.asarray(found), np.asarray(wanted), atol=1e-6))
