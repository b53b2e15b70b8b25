"""A whole router in the test's process, with a scripted worker behind it, over real gRPC."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from baton.v1 import directory_pb2_grpc, router_pb2_grpc
from services.router.config import RouterConfig
from services.router.doors.app import create_app
from services.router.doors.http_server import HttpServer
from services.router.grpc.directory_servicer import DirectoryServicer
from services.router.grpc.server import RouterServicer
from services.router.openai.backend import Backend
from services.router.openai.catalogue import one_model
from services.router.parts import open_parts
from shared.generation.limits import RequestLimits
from shared.identity import Role
from shared.rpc.server import RpcServer
from tests.fakes.router.one_pool import OnePool
from tests.fakes.scripted.decode import ScriptedDecode, with_logprobs
from tests.fakes.text import tiny_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

LIMITS = RequestLimits(
    max_body_bytes=100_000,
    max_prompt_chars=50_000,
    max_n=4,
    max_answers=8,
    max_header_bytes=4096,
    max_headers=32,
    header_timeout_s=0.5,
    body_timeout_s=0.5,
    max_grpc_message_bytes=200_000,
)


@dataclass(slots=True)
class RouterSite:
    """Where it listens, and what is inside."""

    stack: AsyncExitStack
    parts: OnePool
    app: Any
    worker: ScriptedDecode
    http_port: int
    grpc_port: int
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    def is_idle(self) -> bool:
        """Whether the router's books are empty."""
        admission = self.parts.admission
        return (
            all(
                e.work.num_requests == e.work.num_waiting_tokens == e.work.num_held_tokens == 0
                for role in (Role.DECODE, Role.PREFILL)
                for e in self.parts.endpoints.of_role(role)
            )
            and admission.num_inside == admission.num_queued == admission.num_queued_tokens == 0
            and self.worker.num_open == 0
        )

    async def settle(self) -> None:
        """Wait for the last request's end on both sides."""
        async with asyncio.timeout(10):
            while not self.is_idle():  # noqa: ASYNC110 it ends on another connection
                await asyncio.sleep(0.01)


async def start_router(folder: Path) -> RouterSite:
    """Start everything; `stack` ends it."""
    model = tiny_tokenizer.save(tiny_tokenizer.byte_level(), folder / "tiny")
    config = RouterConfig(model=model, request_timeout_s=10, limits=LIMITS)
    stack = AsyncExitStack()
    parts = OnePool(await stack.enter_async_context(open_parts(config)))
    worker = ScriptedDecode(
        name="decode-0", answer=lambda request: with_logprobs(request, 70, 71, 72)
    )
    await worker.start()
    stack.push_async_callback(worker.die)
    await parts.registry.register(worker.record, 3600)
    async with asyncio.timeout(10):
        await parts.endpoints.wait_until(
            lambda: any(e.usable for e in parts.endpoints.of_role(Role.DECODE))
        )
    backend = Backend(
        generator=parts.pipeline,
        tokenizer=parts.tokenizer,
        chat_template=parts.chat_template,
        models=parts.models,
        explainer=parts.planner,
        explains=True,
        limits=LIMITS,
    )
    catalogue = one_model(backend)
    app = create_app(
        catalogue,
        not_ready_because=parts.endpoints.not_ready_because,
        registry=CollectorRegistry(),
        version="0",
    )
    http = HttpServer(app, drain_grace_s=1.0, limits=LIMITS)
    await http.start("127.0.0.1", 0)
    stack.push_async_callback(http.stop)
    rpc = RpcServer((), max_message_bytes=LIMITS.max_grpc_message_bytes)
    servicer = RouterServicer(catalogue)
    router_pb2_grpc.add_RouterServicer_to_server(servicer, rpc.server)
    directory_pb2_grpc.add_DirectoryServicer_to_server(
        DirectoryServicer(parts.registry, parts.blocks), rpc.server
    )
    await rpc.start("127.0.0.1:0")
    stack.push_async_callback(rpc.stop, 0)
    # The script remembers every request that it was asked; nobody looks here.
    worker.requests = _Forgetful()
    return RouterSite(stack, parts, app, worker, http.port, rpc.port)


class _Forgetful(list[Any]):
    def append(self, _item: Any) -> None:
        return
