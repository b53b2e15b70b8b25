"""A router of several models with scripted workers, behind its HTTP application and gRPC."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
import httpx
from prometheus_client import CollectorRegistry

from baton.v1 import router_pb2_grpc
from services.router.admission.caller import Caller
from services.router.admission.tenant import Tenant
from services.router.catalogue.readiness import Readiness
from services.router.config import RouterConfig
from services.router.doors.app import create_app
from services.router.front import Front
from services.router.grpc.server import RouterServicer
from services.router.operated import OperatedCluster
from services.router.parts import open_parts
from services.router.watch.metrics import observe_state
from shared.identity import Role
from shared.rpc.server import RpcServer
from tests.fakes.scripted.decode import ScriptedDecode, say
from tests.fakes.text import tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from services.router.catalogue.pool import Pool
    from services.router.parts import RouterParts

LINGER_S = 0.05
LEASE_S = 60.0
#: By the key that a client shows.
TENANTS = {"Bearer only-beta": Tenant(name="b", models=frozenset({"beta"}))}


def _caller(headers: Mapping[str, str]) -> Caller:
    tenant = TENANTS.get(headers.get("authorization", ""))
    return Caller() if tenant is None else Caller(tenant=tenant)


def save_models(folder: Path) -> list[str]:
    """Three models, whose tokenizers differ: what --models takes for them."""
    alpha = tiny_tokenizer.save(tiny_tokenizer.byte_level(), folder / "alpha")
    beta = tiny_tokenizer.save(
        tiny_tokenizer.sentencepiece(), folder / "beta", chat_template="{{ messages[0].content }}"
    )
    gamma = tiny_tokenizer.save(
        tiny_tokenizer.with_bos(tiny_tokenizer.byte_level()), folder / "gamma"
    )
    return [f"alpha={alpha}", "alias=a", f"beta={beta}", "alias=b", f"gamma={gamma}"]


@dataclass(slots=True)
class CatalogueSite:
    """The router, its doors, and its workers by name."""

    stack: AsyncExitStack
    router: RouterParts
    registry: CollectorRegistry
    http: httpx.AsyncClient
    grpc: router_pb2_grpc.RouterStub
    workers: dict[str, ScriptedDecode] = field(default_factory=dict)

    def pool(self, name: str) -> Pool:
        """The pool of a model."""
        return next(pool for pool in self.router.pools if name in pool.names)

    async def join(
        self,
        name: str,
        model: str,
        *,
        role: Role = Role.DECODE,
        lease_s: float = LEASE_S,
        waits: bool = True,
        **facts: Any,
    ) -> ScriptedDecode:
        """Start a worker; with `waits`, it has answered its canary and the model is loaded."""
        worker = ScriptedDecode(name=name, role=role, scripts=[say(70, 71)])
        await worker.start(model=model, **facts)
        self.stack.push_async_callback(worker.die)
        self.workers[name] = worker
        await self.router.registry.register(worker.record, lease_s)
        if waits:
            pool = self.pool(model)
            await self.until(
                model,
                lambda: (
                    pool.served is not None
                    and any(
                        e.usable and e.record.worker == worker.record.worker
                        for e in pool.endpoints.of_role(role)
                    )
                ),
            )
        return worker

    async def leave(self, name: str) -> None:
        """Deregister a worker, and stop it."""
        worker = self.workers.pop(name)
        await self.router.registry.deregister(worker.record.worker)
        await worker.die()

    async def until(self, model: str, condition: Any) -> None:
        """Wait until a condition on a pool holds."""
        async with asyncio.timeout(10):
            await self.pool(model).endpoints.wait_until(condition)

    async def ask(self, model: str | None = None, **fields: Any) -> httpx.Response:
        """A completion of two tokens."""
        named = {} if model is None else {"model": model}
        body = {"prompt": "hello", "max_tokens": 2, **named, **fields}
        return await self.http.post("/v1/completions", json=body)


@asynccontextmanager
async def catalogue_site(folder: Path, **settings: Any) -> AsyncIterator[CatalogueSite]:
    """Serve the models of `save_models`, without workers yet."""
    config = RouterConfig(models=tuple(save_models(folder)), request_timeout_s=20, **settings)
    async with AsyncExitStack() as stack:
        router = await stack.enter_async_context(open_parts(config, linger_s=LINGER_S))
        registry = CollectorRegistry()
        observe_state(router, registry)
        front = Front(config, router, registry, caller_of=lambda r: _caller(r.headers))
        catalogue = front.catalogue()
        readiness = Readiness(router.pools)
        app = create_app(
            catalogue,
            not_ready_because=readiness.not_ready_because,
            notes=readiness.notes,
            registry=registry,
            version="test",
            cluster=OperatedCluster(config, router),
        )
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        http = await stack.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url="http://router")
        )
        rpc = RpcServer(["baton.v1.Router"])
        servicer = RouterServicer(
            catalogue, caller_of=lambda metadata: _caller({str(k): str(v) for k, v in metadata})
        )
        router_pb2_grpc.add_RouterServicer_to_server(servicer, rpc.server)
        await rpc.start("127.0.0.1:0")
        stack.push_async_callback(rpc.stop, 0)
        channel = await stack.enter_async_context(
            grpc.aio.insecure_channel(f"127.0.0.1:{rpc.port}")
        )
        stub = router_pb2_grpc.RouterStub(channel)
        yield CatalogueSite(stack, router, registry, http, stub)
