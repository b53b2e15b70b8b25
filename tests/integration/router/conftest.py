from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from services.router.config import RouterConfig
from services.router.openai.backend import Backend
from services.router.parts import open_parts
from services.router.request.generation import GenerationRequest
from services.router.routing.places.mode import PlacementMode
from shared.generation.params import GenerationParams
from shared.identity import Role
from shared.rpc.protocol import PROTOCOL_MINOR
from tests.fakes.router.one_pool import OnePool
from tests.fakes.router.vector_door import Door
from tests.fakes.scripted.decode import Script, ScriptedDecode
from tests.fakes.text import tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Sequence
    from pathlib import Path

    from services.router.admission.tenant import Tenant
    from services.router.request.generation import AnswerPiece, Generator
    from tests.fakes.worker.poolers import PoolWorker


class PipelineAborter:
    """See Aborter: of the one model."""

    def __init__(self, parts: OnePool) -> None:
        self._parts = parts

    async def abort(self, names: Collection[str] | None, *, tenant: Tenant | None) -> int:
        """See Aborter."""
        return int(self._parts.pipeline.abort(names, tenant=tenant))


@dataclass(slots=True)
class Bench:
    """A router with scripted workers behind it."""

    config: RouterConfig
    stack: AsyncExitStack
    parts: OnePool
    workers: list[ScriptedDecode] = field(default_factory=list)

    def backend(self, generator: Generator | None = None) -> Backend:
        """What HTTP endpoints work with, in front of the pipeline or of what is around it."""
        parts = self.parts
        return Backend(
            generator=generator or parts.pipeline,
            tokenizer=parts.tokenizer,
            chat_template=parts.chat_template,
            models=parts.models,
            explainer=parts.planner,
            explains=True,
            aborter=PipelineAborter(parts),
        )

    async def add_worker(
        self,
        *scripts: Script,
        name: str | None = None,
        role: Role = Role.DECODE,
        protocol_minor: int = PROTOCOL_MINOR,
        **record: Any,
    ) -> ScriptedDecode:
        """A worker that has answered its canary."""
        worker = ScriptedDecode(name=name or f"{role.value}-{len(self.workers)}", role=role)
        worker.protocol_minor = protocol_minor
        if scripts:
            worker.scripts = list(scripts)
        await worker.start(**record)
        self.stack.push_async_callback(worker.die)
        self.workers.append(worker)
        await self.parts.registry.register(worker.record, 60)
        async with asyncio.timeout(10):
            await self.parts.endpoints.wait_until(lambda: self.usable(worker))
        return worker

    async def report(self, worker: ScriptedDecode | PoolWorker) -> None:
        """A heartbeat of the worker, with its adapters."""
        load = worker.load()
        await self.parts.registry.heartbeat(worker.record.worker, load)
        async with asyncio.timeout(10):
            await self.parts.endpoints.wait_until(
                lambda: any(
                    e.record.worker == worker.record.worker and e.load == load
                    for e in self.parts.endpoints.everyone()
                )
            )

    def usable(self, worker: ScriptedDecode) -> bool:
        return any(
            e.usable and e.record.worker == worker.record.worker
            for e in self.parts.endpoints.of_role(worker.role)
        )

    def ids(self, text: str) -> tuple[int, ...]:
        """One token per character or byte, so that tests can cut where they want."""
        return tuple(i for char in text for i in self.parts.tokenizer.encode(char))

    def request(self, text: str = "hello", **params: Any) -> GenerationRequest:
        return GenerationRequest(
            request_id="r",
            model="tiny",
            prompt_token_ids=self.ids(text),
            params=GenerationParams(**params),
            arrival_s=time.monotonic(),
            tokenize_ms=1.5,
        )

    async def answer(
        self,
        request: GenerationRequest | None = None,
        *,
        gates: Sequence[asyncio.Event] = (),
        **params: Any,
    ) -> Answer:
        """Everything that came out; the next of `gates` is opened with every piece."""
        answer = Answer()
        generator = self.parts.pipeline.generate(request or self.request(**params))
        async with aclosing(generator) as pieces:
            async for piece in pieces:
                answer.pieces.append(piece)
                if len(answer.pieces) <= len(gates):
                    gates[len(answer.pieces) - 1].set()
        return answer

    def is_idle(self) -> bool:
        """Whether the router's books are empty."""
        books = [
            (e.work.num_requests, e.work.num_waiting_tokens, e.work.num_held_tokens)
            for role in (Role.DECODE, Role.PREFILL)
            for e in self.parts.endpoints.of_role(role)
        ]
        admission = self.parts.admission
        return (
            all(book == (0, 0, 0) for book in books)
            and admission.num_inside == admission.num_queued == admission.num_queued_tokens == 0
        )


@dataclass(slots=True)
class Answer:
    """The pieces of a request."""

    pieces: list[AnswerPiece] = field(default_factory=list)

    def text(self, index: int = 0) -> str:
        return "".join(p.text for p in self.pieces if p.index == index)

    def token_ids(self, index: int = 0) -> tuple[int, ...]:
        return tuple(i for p in self.pieces if p.index == index for i in p.token_ids)

    @property
    def last(self) -> AnswerPiece:
        return self.pieces[-1]


@pytest.fixture
def config(tmp_path: Path) -> RouterConfig:
    model = tiny_tokenizer.save(tiny_tokenizer.byte_level(), tmp_path / "tiny")
    return RouterConfig(
        model=model,
        request_timeout_s=20,
        enable_return_hidden_states=True,
        placement=PlacementMode.DISAGGREGATED,
    )


@pytest.fixture
async def bench(config: RouterConfig, request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """Settings can be changed with `@pytest.mark.parametrize("bench", [{...}], indirect=True)`."""
    config = replace(config, **getattr(request, "param", {}))
    async with AsyncExitStack() as stack:
        parts = await stack.enter_async_context(open_parts(config))
        bench = Bench(config, stack, OnePool(parts))
        yield bench
        assert bench.is_idle()


@pytest.fixture
async def door(bench: Bench) -> AsyncIterator[Door]:
    """The doors of its vectors."""
    door = Door(bench)
    async with door.http:
        yield door
