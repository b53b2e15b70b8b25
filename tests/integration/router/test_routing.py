"""Routing through the real HTTP application and pipeline, with scripted workers."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from baton.v1 import common_pb2
from services.router.answer import planner as answer_planner
from services.router.doors.app import create_app
from services.router.openai.catalogue import one_model
from services.router.routing.base import RoutingRequest
from services.router.routing.places.mode import PlacementMode
from shared.directory.base import BlockUpdate
from shared.errors import OverloadedError
from shared.generation.resolver import SamplingResolver
from shared.identity import Role
from shared.kv.identity import KVIdentity
from tests.fakes.scripted.decode import Script, Step, say

if TYPE_CHECKING:
    from shared.request.sampling_params import SamplingParams
    from tests.fakes.scripted.decode import ScriptedDecode
    from tests.integration.router.conftest import Bench

#: As the scripted workers say.
NAMESPACE = b"\xab" * 32
BLOCK_SIZE = 16
PROMPT = [60 + i % 40 for i in range(10 * BLOCK_SIZE)]


def _client(bench: Bench) -> httpx.AsyncClient:
    app = create_app(
        one_model(bench.backend()),
        not_ready_because=bench.parts.endpoints.not_ready_because,
        registry=CollectorRegistry(),
        version="test",
    )
    transport = httpx.ASGITransport(app=app)
    return httpx.AsyncClient(transport=transport, base_url="http://router")


async def _holds(bench: Bench, worker: ScriptedDecode, num_blocks: int) -> None:
    hashes = KVIdentity(NAMESPACE).hash_blocks(PROMPT, BLOCK_SIZE)[:num_blocks]
    update = BlockUpdate(worker=worker.record.worker, sequence=1, stored=hashes)
    await bench.parts.blocks.publish(update)


async def _cluster(bench: Bench) -> tuple[ScriptedDecode, list[ScriptedDecode]]:
    decode = await bench.add_worker()
    prefill = [await bench.add_worker(name=name, role=Role.PREFILL) for name in ("p", "q", "r")]
    return decode, prefill


def _body(**more: Any) -> dict[str, Any]:
    return {"prompt": PROMPT, "max_tokens": 4, **more}


async def test_an_explanation_has_every_worker_s_terms_and_changes_nothing(bench: Bench) -> None:
    decode, (_, q, r) = await _cluster(bench)
    await _holds(bench, q, 10)
    await _holds(bench, r, 5)
    r_endpoint = next(e for e in bench.parts.endpoints.of_role(Role.PREFILL) if e.name == "r")
    r_endpoint.refused = True
    async with _client(bench) as client:
        answer = (await client.post("/v1/route", json=_body())).json()
    assert (answer["policy"], answer["num_prompt_tokens"], answer["num_blocks"]) == (
        "cost",
        160,
        10,
    )
    first, second = answer["prefill"]["candidates"]
    assert (first["worker"], first["num_held_tokens"]) == ("q", 159)
    assert (second["worker"], second["num_held_tokens"]) == ("p", 0)
    for view in (first, second):
        terms = {"queue", "prefill", "transfer", "adapter", "eviction", "crowding", "heat"}
        terms |= {"beside", "preference"}
        assert set(view["terms_ms"]) == terms
        assert sum(view["terms_ms"].values()) == pytest.approx(view["cost_ms"])
    assert first["cost_ms"] < second["cost_ms"]
    assert answer["prefill"]["left_out"] == {"r": "draining"}
    assert answer["route"]["place"] == "handed_over"
    assert answer["placements"] == []
    assert answer["route"]["decode"] == decode.name
    assert answer["route"]["prefill"] == ["q", "p"]
    assert answer["route"]["sources"] == []
    assert answer["refused"] is None
    assert len(decode.requests) == 0
    assert bench.is_idle()


async def test_an_explanation_without_workers_says_so(bench: Bench) -> None:
    worker = await bench.add_worker()
    [endpoint] = bench.parts.endpoints.of_role(Role.DECODE)
    endpoint.refused = True
    async with _client(bench) as client:
        answer = (await client.post("/v1/route", json=_body())).json()
        chat = {"messages": [{"role": "user", "content": "hi"}]}
        chatted = (await client.post("/v1/route", json=chat)).json()
        several = await client.post("/v1/route", json=_body(prompt=["a", "b"]))
    assert answer["route"] is None
    assert answer["decode"]["left_out"] == {worker.name: "draining"}
    assert chatted["num_prompt_tokens"] > 0
    assert (several.status_code, several.json()["error"]["param"]) == (400, "prompt")


async def test_requests_go_where_their_blocks_are_and_salts_keep_apart(bench: Bench) -> None:
    decode, (_, q, _) = await _cluster(bench)
    await _holds(bench, q, 10)
    request = replace(bench.request(), prompt_token_ids=tuple(PROMPT))
    for _ in range(4):
        await bench.answer(request)
    assert [r.prefill_candidates[0].worker.name for r in decode.requests] == ["q"] * 4
    salted = bench.parts.planner.explain(replace(request, cache_salt=b"tenant"))
    assert {view.num_held_tokens for view in salted.prefill.candidates} == {0}


@pytest.mark.parametrize("bench", [{"placement": PlacementMode.ELASTIC}], indirect=True)
async def test_a_worker_is_told_that_it_keeps_a_prompt_and_the_answer_s_bound(
    bench: Bench,
) -> None:
    decode, _ = await _cluster(bench)
    request = replace(bench.request(), prompt_token_ids=tuple(PROMPT), max_itl_ms=500.0)
    assert bench.parts.planner.explain(request).placements[0].place == "here"
    await bench.answer(request)
    [sent] = decode.requests
    assert (len(sent.prefill_candidates), sent.keeps_prompt, sent.max_itl_ms) == (0, True, 500.0)
    assert sent.num_handed_tokens == 0


async def test_an_answer_teaches_the_worker_s_profile(bench: Bench) -> None:
    usage = common_pb2.Usage(
        prompt_tokens=5, completion_tokens=3, sources=common_pb2.PromptSources(computed=5)
    )
    timings = common_pb2.Timings(prefill_ms=700.0, decode_ms=80.0)
    await bench.add_worker(say(5, 6, 7, usage=usage, timings=timings))
    [endpoint] = bench.parts.endpoints.of_role(Role.DECODE)
    before_ms = endpoint.profile.itl_ms(1, 5)
    await bench.answer()
    assert endpoint.profile.prefill_ms(5, 0) > 350
    assert endpoint.profile.itl_ms(1, 5) > 1.5 * before_ms


@pytest.mark.parametrize("bench", [{"max_ttft_ms": 1000.0}], indirect=True)
async def test_who_would_wait_too_long_is_told_when_to_come_back(bench: Bench) -> None:
    gate = asyncio.Event()
    decode = await bench.add_worker(Script([Step(gate=gate, token_ids=(70,))]))
    [endpoint] = bench.parts.endpoints.of_role(Role.DECODE)
    for _ in range(20):
        endpoint.profile.observe_prefill(160, 0, 900.0)
    async with _client(bench) as client:
        served = asyncio.create_task(client.post("/v1/completions", json=_body()))
        await decode.wait_requests(1)
        refused = await client.post("/v1/completions", json=_body())
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 2
        assert "first token" in refused.json()["error"]["message"]
        explained = (await client.post("/v1/route", json=_body())).json()
        assert "first token" in explained["refused"]
        gate.set()
        assert (await served).status_code == 200
    assert len(decode.requests) == 1


async def test_a_request_can_bring_its_own_bounds(bench: Bench) -> None:
    await bench.add_worker()
    async with _client(bench) as client:
        for bound in ("max_ttft_ms", "max_itl_ms"):
            assert (
                await client.post("/v1/completions", json=_body(**{bound: 0.5}))
            ).status_code == 429
            wide = await client.post("/v1/completions", json=_body(**{bound: 60_000}))
            assert wide.status_code == 200
            wrong = await client.post("/v1/completions", json=_body(**{bound: 0}))
            assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, bound)


async def test_a_full_queue_counts_in_the_prediction(bench: Bench) -> None:
    await bench.add_worker()
    scheduler_request = RoutingRequest(num_prompt_tokens=5, max_tokens=5, max_ttft_ms=500.0)
    planner = bench.parts.planner
    job = planner.plan(replace(bench.request(), max_ttft_ms=scheduler_request.max_ttft_ms), "r")
    planner.check(job, wait_s=0.0)
    with pytest.raises(OverloadedError):
        planner.check(job, wait_s=2.0)


async def test_a_long_prompt_is_planned_beside_the_event_loop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner, main = bench.parts.planner, threading.main_thread()
    decode, _ = await _cluster(bench)
    planned_in, hashed_in = [], []
    resolve, hash_blocks = SamplingResolver.resolve, KVIdentity.hash_blocks

    def noted_resolve(*args: Any, **kwargs: Any) -> SamplingParams:
        planned_in.append(threading.current_thread())
        return resolve(*args, **kwargs)

    def noted_hash(*args: Any) -> list[bytes]:
        hashed_in.append(threading.current_thread())
        return hash_blocks(*args)

    monkeypatch.setattr(SamplingResolver, "resolve", noted_resolve)
    monkeypatch.setattr(KVIdentity, "hash_blocks", noted_hash)
    monkeypatch.setattr(answer_planner, "INLINE_SIZE", len(PROMPT) - 1)
    long = replace(bench.request(), prompt_token_ids=tuple(PROMPT))
    await bench.answer(long)
    assert len(decode.requests) == 1
    assert planned_in == hashed_in
    assert main not in planned_in
    # A namespace that comes while the request waits is hashed when it is routed.
    job = planner.plan(long, "r")
    job.block_hashes = {"00": [b""]}
    planner.route(job)
    assert set(job.block_hashes) == {"00", NAMESPACE.hex()}
    assert hashed_in[1:] == [main]
