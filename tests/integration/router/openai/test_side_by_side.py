"""Baton's answers beside vLLM's, which `make side-by-side` has recorded."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter

from services.router.config import RouterConfig
from services.router.doors.app import create_app
from services.router.openai.catalogue import one_model
from shared.directory.base import WEIGHT_VERSION
from tests.fakes.router.openai_api import FakeCluster
from tests.fakes.scripted.decode import one_by_one, with_logprobs
from tests.side_by_side.ask import send
from tests.side_by_side.difference import differences
from tests.side_by_side.recording import load
from tests.side_by_side.requests import requests
from tests.side_by_side.rules import rule_of
from tests.side_by_side.servers import MODEL

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator

    from baton.v1 import decode_pb2
    from services.router.request.generation import AnswerPiece, GenerationRequest, Generator
    from services.router.request.outlet import Outlet
    from shared.text.tokenizer import Tokenizer
    from tests.fakes.scripted.decode import Script
    from tests.integration.router.conftest import Bench
    from tests.side_by_side.ask import Ask
    from tests.side_by_side.difference import Difference

pytestmark = pytest.mark.integration

#: What the shipped model says to the requests' prompts, in chats and to a text.
CHAT, TEXT = "A list is a mutable", " a function of the module"


@pytest.fixture
def config() -> RouterConfig:
    return RouterConfig(model=MODEL, served_model_name=("m",), tool_call_parser="hermes")


@dataclass
class Worker:
    """Says what the model would. In a stream, the next tokens come when the last ones are out."""

    tokenizer: Tokenizer
    pipeline: Generator
    text: str = CHAT
    #: Tokens per piece; 0: all at once.
    step: int = 0
    gates: list[list[asyncio.Event]] = field(default_factory=list)

    def prepare(self, ask: Ask) -> None:
        """Before each request."""
        self.gates.clear()
        body = ask.body if isinstance(ask.body, dict) else {}
        self.text = TEXT if "completions" in ask.path and "prompt" in body else CHAT
        interval = body.get("stream_interval")
        self.step = 0
        if body.get("stream") is True:
            self.step = interval if isinstance(interval, int) else 1

    def answer(self, request: decode_pb2.DecodeRequest) -> Script:
        """See ScriptedDecode."""
        ids = self.tokenizer.encode(self.text)[: request.sampling.max_tokens]
        script = with_logprobs(request, *ids)
        if self.step:
            script, gates = one_by_one(script)
            self.gates.append(gates)
        return script

    async def generate(
        self, request: GenerationRequest, outlet: Outlet | None = None
    ) -> AsyncIterator[AnswerPiece]:
        """See Generator."""
        async for piece in self.pipeline.generate(request):
            yield piece
            for gates in self.gates:
                for gate in gates[: self.step]:
                    gate.set()
                del gates[: self.step]


async def test_answers_differ_from_vllms_for_known_reasons_only(bench: Bench) -> None:
    behind = await bench.add_worker(
        model="m", max_model_len=2048, labels={WEIGHT_VERSION: "default"}
    )
    worker = Worker(bench.parts.tokenizer, bench.parts.pipeline)
    behind.answer = worker.answer
    registry = CollectorRegistry()
    Counter("baton_tests", "Something to scrape", registry=registry)
    app = create_app(
        one_model(
            replace(bench.backend(worker), formats=bench.parts.formats, trusts_templates=True)
        ),
        not_ready_because=bench.parts.endpoints.not_ready_because,
        cluster=FakeCluster(),
        registry=registry,
        version="test",
    )
    recording = load()
    found: list[Difference] = []
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://router") as http:
        for ask in requests():
            worker.prepare(ask)
            ours = await send(http, ask)
            found += differences(ask.key, recording.answers[ask.key], ours, with_text=False)
    unknown = [
        str(each)
        for each in found
        if rule_of(each, recording.fields) is None and not needs_the_model(each)
    ]
    assert not unknown, "\n".join(unknown)


def needs_the_model(found: Difference) -> bool:
    """Whether it is about how an answer ends that a grammar or the context ended."""
    return found.aspect.endswith(("stop_reason", "incomplete_details"))


def test_every_request_is_recorded() -> None:
    assert load().answers.keys() == {ask.key for ask in requests()}
