"""Requests for an adapter over scripted workers: it goes wherever the request goes."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from services.router.request.resume import AnswerSoFar
from shared.errors import (
    AdapterNotLoadedError,
    GenerationGoneError,
    ModelNotFoundError,
    WorkerLostError,
)
from shared.identity import Role
from shared.request.adapter_ref import adapter_to_wire
from shared.request.beam_search import BeamOptions
from tests.fakes.scripted_decode import Script, ScriptedDecode, Step, say, with_logprobs

if TYPE_CHECKING:
    from services.router.request.generation import GenerationRequest
    from shared.request.adapter_ref import AdapterRef
    from tests.integration.router.conftest import Bench

DISK = {"/a/sql": "sql", "/a/web": "web"}


async def worker(bench: Bench, *scripts: Script, role: Role = Role.DECODE) -> ScriptedDecode:
    """A worker that has the adapter sql."""
    found = await bench.add_worker(*scripts, role=role)
    found.disk, found.max_adapters = dict(DISK), 4
    found.hold("sql", "/a/sql")
    await bench.report(found)
    return found


def asking(bench: Bench, name: str = "sql", **params: object) -> GenerationRequest:
    asked = bench.parts.models.resolve(name)
    return replace(bench.request(**params), model=asked.name, adapter=asked.adapter)


def refs(found: ScriptedDecode) -> list[AdapterRef | None]:
    return [r.adapter if r.HasField("adapter") else None for r in found.requests]


@pytest.mark.parametrize(
    "params", [{}, {"n": 3}, {"n": 2, "beams": BeamOptions(width=2), "max_tokens": 2}]
)
async def test_every_call_to_a_worker_has_the_adapter(
    bench: Bench, params: dict[str, object]
) -> None:
    decode = await worker(bench)
    decode.answer = lambda request: with_logprobs(request, 5, 6)
    sql = bench.parts.models.resolve("sql").adapter
    assert sql is not None
    await bench.answer(asking(bench, **params))
    assert decode.requests
    assert refs(decode) == [adapter_to_wire(sql)] * len(decode.requests)
    decode.requests.clear()
    await bench.answer(**params)
    assert refs(decode) == [None] * len(decode.requests)


async def test_a_replay_has_it_too_and_no_worker_without_adapters_is_asked(bench: Bench) -> None:
    lost = Script([Step(token_ids=(5,)), Step(error=WorkerLostError("power cut"))])
    workers = [await worker(bench, lost), await worker(bench, say(6))]
    plain = await bench.add_worker(say(1))
    bench.parts.endpoints.of_role(Role.DECODE)[1].work.num_decoding += 100
    request = asking(bench)
    assert request.adapter is not None
    assert (await bench.answer(request)).token_ids() == (5, 6)
    assert [refs(each) for each in workers] == [[adapter_to_wire(request.adapter)]] * 2
    assert not plain.requests


async def test_a_worker_that_cannot_load_it_is_no_failed_worker(bench: Bench) -> None:
    refuses = Script([Step(error=AdapterNotLoadedError("not below --lora-dir"))])
    first, second = await worker(bench, refuses), await worker(bench, say(7))
    bench.parts.endpoints.of_role(Role.DECODE)[1].work.num_decoding += 100
    assert (await bench.answer(asking(bench))).token_ids() == (7,)
    assert (len(first.requests), len(second.requests)) == (1, 1)
    assert dict(bench.parts.pipeline.replays) == {"adapter": 1}
    assert all(endpoint.usable for endpoint in bench.parts.endpoints.of_role(Role.DECODE))


async def test_old_workers_get_no_request_for_an_adapter(bench: Bench) -> None:
    old = await bench.add_worker(say(1), protocol_minor=6)
    new = await worker(bench, say(7))
    for _ in range(6):
        assert (await bench.answer(asking(bench))).token_ids() == (7,)
    assert (len(old.requests), len(new.requests)) == (0, 6)


async def test_prompts_under_different_adapters_share_no_block(bench: Bench) -> None:
    await worker(bench)
    other = await worker(bench)
    other.hold("web", "/a/web")
    await bench.report(other)
    planner = bench.parts.planner
    hashes = []
    for name in (None, "sql", "web"):
        asked = bench.parts.models.resolve(name)
        request = replace(bench.request("x" * 40), model=asked.name, adapter=asked.adapter)
        job = planner.plan(request, "r")
        planner.route(job)
        assert job.block_hashes
        hashes.append(set(job.block_hashes))
    assert not hashes[0] & hashes[1]
    assert not hashes[0] & hashes[2]
    assert not hashes[1] & hashes[2]


async def test_an_answer_goes_on_at_another_router_with_the_same_adapter_only(bench: Bench) -> None:
    decode = await worker(bench, say(5, 6))
    async with aclosing(bench.parts.pipeline.generate(asking(bench))) as pieces:
        first = await anext(pieces)
    resumed = (AnswerSoFar(index=0, token_ids=first.token_ids, identity=first.identity),)
    assert (await bench.answer(replace(asking(bench), resumed=resumed))).token_ids()
    with pytest.raises(GenerationGoneError, match="not written without an adapter"):
        await bench.answer(replace(bench.request(), resumed=resumed))
    decode.hold("sql", "/a/web")
    await bench.report(decode)
    with pytest.raises(GenerationGoneError, match="with the adapter 'sql' as it is now"):
        await bench.answer(replace(asking(bench), resumed=resumed))


async def test_it_is_gone_with_its_last_worker(bench: Bench) -> None:
    decode = await worker(bench)
    request = asking(bench)
    await bench.parts.registry.deregister(decode.record.worker)
    await bench.parts.endpoints.wait_until(lambda: not bench.parts.endpoints.everyone())
    with pytest.raises(ModelNotFoundError, match=r"served: tiny$"):
        await bench.answer(request)
