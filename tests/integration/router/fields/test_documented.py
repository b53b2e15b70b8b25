"""docs/api.md against its effect: no field is documented that does nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from baton.v1 import decode_pb2
from scripts.api_table import APIS as DOCUMENTED
from services.router.config import RouterConfig
from services.router.doors.app import create_app
from services.router.openai.catalogue import one_model
from services.router.openai.responses_api.stored.base import StoreLimits
from services.router.openai.responses_api.stored.keeper import ResponseKeeper
from services.router.openai.responses_api.stored.memory import MemoryStore
from shared.generation.params import GenerationParams
from tests.fakes.scripted.decode import Script, Step, position, with_logprobs
from tests.fakes.text import tiny_tokenizer
from tests.integration.router.fields.cases import ANSWER, APIS, BODIES, TEMPLATE, Case, Seen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from services.router.request.generation import AnswerPiece, GenerationRequest, Generator
    from services.router.request.outlet import Outlet
    from tests.fakes.scripted.decode import ScriptedDecode
    from tests.integration.router.conftest import Bench

pytestmark = pytest.mark.integration

STORE = StoreLimits(max_entries=100, max_bytes=1 << 20, max_age_s=60)


@pytest.fixture
def config(tmp_path: Path) -> RouterConfig:
    made = tiny_tokenizer.with_bos(tiny_tokenizer.byte_level())
    model = tiny_tokenizer.save(made, tmp_path / "tiny", chat_template=TEMPLATE)
    return RouterConfig(
        model=model,
        served_model_name=("tiny", "alias"),
        tool_call_parser="hermes",
        reasoning_parser="think",
        enable_prompt_embeds=True,
        enable_return_hidden_states=True,
    )


def test_every_documented_field_has_a_case() -> None:
    for url, api in DOCUMENTED.items():
        assert set(APIS[url]) == set(api.schema.model_fields) - set(api.ignored), url


@pytest.mark.parametrize("url", APIS)
async def test_every_documented_field_does_what_it_says(
    bench: Bench, config: RouterConfig, url: str
) -> None:
    worker = await bench.add_worker()
    ids = bench.parts.tokenizer.encode(ANSWER)

    def answer(request: decode_pb2.DecodeRequest) -> Script:
        if request.sampling.temperature == 0:
            return beam_step(*ids[:2])
        return with_logprobs(request, *ids[: request.sampling.max_tokens])

    worker.answer = answer
    keeper = ResponseKeeper(MemoryStore(STORE))
    pipeline = Recorded(bench.parts.pipeline)
    backend = bench.backend(pipeline)
    app = create_app(
        one_model(
            replace(
                backend,
                formats=bench.parts.formats,
                trusts_templates=True,
                embeds=config.embeds_policy,
                responses=keeper,
            )
        ),
        not_ready_because=bench.parts.endpoints.not_ready_because,
        registry=CollectorRegistry(),
        version="test",
    )
    transport = httpx.ASGITransport(app=app)
    problems = []
    async with httpx.AsyncClient(transport=transport, base_url="http://router") as http:
        for name, case in APIS[url].items():
            problem = await check(http, worker, bench, pipeline, url, name, case)
            if problem:
                problems.append(f"{name}: {problem}")
    await keeper.stop()
    assert not problems, "\n".join(problems)


class Recorded:
    """A pipeline, and its last request."""

    def __init__(self, pipeline: Generator) -> None:
        self._pipeline = pipeline
        self.params = GenerationParams()

    def generate(
        self, request: GenerationRequest, outlet: Outlet | None = None
    ) -> AsyncIterator[AnswerPiece]:
        """See Generator."""
        self.params = request.params
        return self._pipeline.generate(request)


def beam_step(first: int, second: int) -> Script:
    """A step of a beam search: going on is likelier than the end (token 0), which is a choice."""
    top = {first: -0.5, 0: -1.0, second: -1.2}
    extra = decode_pb2.DecodeResponse(logprobs=[position(first, -0.5, top)])
    return Script([Step(token_ids=(first,), extra=extra)])


async def check(
    http: httpx.AsyncClient,
    worker: ScriptedDecode,
    bench: Bench,
    pipeline: Recorded,
    url: str,
    name: str,
    case: Case,
) -> str:
    """What is wrong with a field; empty if nothing is."""
    known = DOCUMENTED[url].schema.model_fields
    beside = {key: value for key, value in case.beside.items() if key in known}
    body = {**BODIES[url], **beside}
    without = await ask(http, worker, bench, pipeline, url, body)
    given = await ask(http, worker, bench, pipeline, url, {**body, name: case.value})
    if without.status != 200:
        return f"the body without it is answered with {without.status}: {without.text}"
    if case.effect(without):
        return f"its effect is there without it: {without.text}"
    if not case.effect(given):
        return f"it has no effect: {given.status} {given.text} {given.prompt} {given.asked[:1]}"
    return ""


async def ask(
    http: httpx.AsyncClient,
    worker: ScriptedDecode,
    bench: Bench,
    pipeline: Recorded,
    url: str,
    body: dict[str, Any],
) -> Seen:
    """One request, to its end."""
    worker.requests.clear()
    response = await http.post(url, json=body)
    asked = list(worker.requests)
    prompt = bench.parts.tokenizer.decode(asked[0].token_ids, False) if asked else ""
    is_json = response.headers["content-type"] == "application/json"
    return Seen(
        response.status_code,
        response.json() if is_json else None,
        response.text,
        response.headers,
        asked,
        prompt,
        pipeline.params,
    )
