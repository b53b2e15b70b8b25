"""POST /abort_requests: answers end with what has arrived, and workers are told."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from services.router.admission.keys.file_keys import FileKeys
from services.router.admission.keys.key_ring import KeyRing
from services.router.admission.tenant import Tenant
from services.router.doors.app import create_app
from services.router.openai.catalogue import one_model
from shared.errors import RequestCancelledError
from shared.request.answer import FinishReason
from shared.request.beam_search import BeamOptions
from tests.fakes.scripted.decode import Script, Step
from tests.fakes.security.keys import keys_on_disk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from services.router.request.generation import AnswerPiece, GenerationRequest
    from tests.integration.router.conftest import Bench

PATHS = ("/abort_requests", "/inference/v1/abort_requests")


def endless(bench: Bench) -> Script:
    """One token, and nothing after it."""
    return Script([Step(token_ids=bench.ids("a")), Step(gate=asyncio.Event())], finish=None)


@asynccontextmanager
async def router(bench: Bench, keys: KeyRing | None = None) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(
        one_model(bench.backend()),
        not_ready_because=bench.parts.endpoints.not_ready_because,
        registry=CollectorRegistry(),
        version="test",
        keys=keys,
    )
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://router") as http:
        yield http


@pytest.fixture
async def http(bench: Bench) -> AsyncIterator[httpx.AsyncClient]:
    async with router(bench) as http:
        yield http


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 a worker's calls have no event
            await asyncio.sleep(0.01)


async def pieces_until(
    bench: Bench, request: GenerationRequest, num: int, names: set[str], tenant: Tenant | None
) -> tuple[int, list[AnswerPiece]]:
    """All pieces; after the first `num` the request is aborted."""
    found: list[AnswerPiece] = []
    aborted = 0
    async with aclosing(bench.parts.pipeline.generate(request)) as pieces:
        async for piece in pieces:
            found.append(piece)
            if len(found) == num:
                aborted = bench.parts.pipeline.abort(names, tenant=tenant)
    return aborted, found


@pytest.mark.parametrize("n", [1, 2])
async def test_an_answer_ends_as_it_is(bench: Bench, n: int) -> None:
    worker = await bench.add_worker(endless(bench))
    request = replace(bench.request(n=n), names=("mine", "cmpl-mine"))
    num, pieces = await pieces_until(bench, request, 1, {"cmpl-mine", "other"}, None)
    assert num == 1
    assert pieces[0].text == "a"
    ends = [piece for piece in pieces if piece.finish_reason is not None]
    assert [piece.finish_reason for piece in ends] == [FinishReason.ABORT] * n
    assert ends[-1].usage is not None
    assert ends[-1].usage.completion_tokens == 1
    await until(lambda: bool(worker.cancelled) and not worker.num_open)


async def test_a_tenant_ends_its_own_requests_only(bench: Bench) -> None:
    await bench.add_worker(endless(bench))
    request = replace(bench.request(), names=("mine",), tenant=Tenant(name="a"))
    pipeline = bench.parts.pipeline
    async with aclosing(pipeline.generate(request)) as pieces:
        assert (await anext(pieces)).text == "a"
        assert pipeline.abort({"mine"}, tenant=Tenant(name="b")) == 0
        assert pipeline.abort({"min"}, tenant=Tenant(name="a")) == 0
        assert pipeline.abort({"mine"}, tenant=Tenant(name="a")) == 1
        assert (await anext(pieces)).finish_reason is FinishReason.ABORT
    assert pipeline.abort({"mine"}, tenant=None) == 0, "it runs no more"


async def test_a_beam_search_has_no_answer_then(bench: Bench) -> None:
    worker = await bench.add_worker(endless(bench))
    request = replace(bench.request(beams=BeamOptions(width=2)), names=("mine",))
    asked = asyncio.ensure_future(bench.answer(request))
    await until(lambda: worker.num_open > 0)
    bench.parts.pipeline.abort({"mine"}, tenant=None)
    with pytest.raises(RequestCancelledError, match="was aborted"):
        await asked


@pytest.mark.parametrize("path", PATHS)
async def test_clients_name_requests_by_header_or_by_id(
    bench: Bench, http: httpx.AsyncClient, path: str
) -> None:
    worker = await bench.add_worker(endless(bench))
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "hi"},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
        "/inference/v1/generate": {"token_ids": [5], "sampling_params": {}},
    }
    names = {"/v1/completions": "cmpl-r1", "/v1/chat/completions": "r2"}
    for i, (url, body) in enumerate(bodies.items(), 1):
        asked = asyncio.ensure_future(http.post(url, json=body, headers={"x-request-id": f"r{i}"}))
        await until(lambda: worker.num_open > 0)
        aborted = await http.post(path, json={"request_ids": [names.get(url, "r3"), "unknown"]})
        assert aborted.json() == {"status": "aborted", "aborted": 1}
        reply = (await asked).json()
        assert reply["choices"][0]["finish_reason"] == "abort", url
        await until(lambda: not worker.num_open)


@pytest.mark.parametrize("body", [{}, {"request_ids": []}, {"request_ids": None}])
async def test_without_ids_all_of_the_caller_s_requests_end(
    bench: Bench, tmp_path: Path, body: dict[str, Any]
) -> None:
    worker = await bench.add_worker(endless(bench))
    disk = keys_on_disk(tmp_path)
    async with router(bench, KeyRing(FileKeys(disk.path))) as http:

        async def post(path: str, tenant: str, json: dict[str, Any]) -> httpx.Response:
            key = {"authorization": f"Bearer {disk.keys[tenant]}"}
            return await http.post(path, json=json, headers=key)

        asked = {
            name: asyncio.ensure_future(post("/v1/completions", tenant, {"prompt": "hi"}))
            for name, tenant in {"a": "a", "again": "a", "b": "b", "ops": "ops"}.items()
        }
        await until(lambda: worker.num_open == len(asked))
        for caller, ended in {"a": {"a", "again"}, "ops": {"b", "ops"}}.items():
            aborted = await post("/abort_requests", caller, body)
            assert aborted.json() == {"status": "aborted", "aborted": 2}
            replies = [(await asked.pop(name)).json() for name in sorted(ended)]
            assert [each["choices"][0]["finish_reason"] for each in replies] == ["abort"] * 2
            await until(lambda: worker.num_open == len(asked))


async def test_what_is_wrong_is_named_and_ends_nothing(
    bench: Bench, http: httpx.AsyncClient
) -> None:
    worker = await bench.add_worker(endless(bench))
    asked = asyncio.ensure_future(http.post("/v1/completions", json={"prompt": "hi"}))
    await until(lambda: worker.num_open > 0)
    wrong = {"ids": ["a"]}, {"request_ids": 1}, {"request_ids": [], "request_id": "a"}
    for path, bodies in {PATHS[0]: wrong, PATHS[1]: (*wrong[:2], {})}.items():
        for body in bodies:
            response = await http.post(path, json=body)
            error = response.json()["error"]
            is_unknown = path == PATHS[0] and list(body) != ["request_ids"]
            param = list(body)[-1] if is_unknown else "request_ids"
            assert (response.status_code, error["param"], error["code"]) == (400, param, 400)
    assert (await http.post(PATHS[1], json={"request_ids": []})).json()["aborted"] == 0
    assert not asked.done()
    assert (await http.post(PATHS[0], json={})).json()["aborted"] == 1
    assert (await asked).json()["choices"][0]["finish_reason"] == "abort"
