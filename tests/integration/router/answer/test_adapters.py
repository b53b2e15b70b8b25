"""Requests for an adapter over scripted workers: it goes wherever the request goes."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import baton_client as sdk
from baton.v1 import router_pb2_grpc
from baton_client import AsyncBaton
from services.router.admission.caller import ANYBODY, Caller
from services.router.admission.tenant import Tenant
from services.router.grpc.server import RouterServicer
from services.router.openai.catalogue import one_model
from services.router.request.resume import AnswerSoFar
from services.router.workers import endpoints
from shared.errors import (
    AdapterNotLoadedError,
    GenerationGoneError,
    InvalidRequestError,
    ModelNotFoundError,
    NoWorkerError,
    UnavailableError,
    UnsupportedError,
    WorkerLostError,
)
from shared.identity import Role
from shared.request.adapter_ref import adapter_to_wire
from shared.request.beam_search import BeamOptions
from shared.rpc.server import RpcServer
from tests.fakes.scripted.adapters import digest
from tests.fakes.scripted.decode import Script, ScriptedDecode, Step, say, with_logprobs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

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
        [own] = job.block_hashes.values()
        hashes.append(set(own))
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


async def test_its_name_lasts_until_a_worker_says_that_it_is_gone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two lives of a worker there is none, and its name must not be unknown."""
    monkeypatch.setattr(endpoints, "RETURN_S", 0.0)
    decode = await worker(bench)
    request = asking(bench)
    pool = bench.parts.endpoints
    await bench.parts.registry.deregister(decode.record.worker)
    await pool.wait_until(lambda: not pool.everyone())
    with pytest.raises(NoWorkerError):
        await bench.answer(request)
    await bench.report(await bench.add_worker())
    async with asyncio.timeout(10):
        await pool.wait_until(lambda: all(each.has_reported for each in pool.everyone()))
    with pytest.raises(ModelNotFoundError, match=r"served: tiny$"):
        await bench.answer(request)


async def fleet(bench: Bench, number: int = 2) -> list[ScriptedDecode]:
    """Decode workers and a prefill worker that have no adapter yet."""
    workers = [await bench.add_worker(say(1)) for _ in range(number)]
    workers.append(await bench.add_worker(role=Role.PREFILL))
    for each in workers:
        each.disk, each.max_adapters = dict(DISK), 4
        await bench.report(each)
    return workers


def held(workers: list[ScriptedDecode]) -> list[dict[str, str]]:
    return [{n: s.adapter.path for n, s in each.adapters.items()} for each in workers]


async def test_a_load_is_on_all_workers_and_can_be_asked_for_at_once(bench: Bench) -> None:
    workers = await fleet(bench)
    sql = await bench.parts.fleet.load_adapter("sql", "/a/sql", replaces=False)
    assert held(workers) == [{"sql": "/a/sql"}] * 3
    assert bench.parts.models.resolve("sql").adapter == sql
    assert (await bench.answer(asking(bench))).token_ids() == (1,)
    with pytest.raises(InvalidRequestError, match=r"already been loaded.*load_inplace"):
        await bench.parts.fleet.load_adapter("sql", "/a/web", replaces=False)
    web = await bench.parts.fleet.load_adapter("sql", "/a/web", replaces=True)
    assert held(workers) == [{"sql": "/a/web"}] * 3
    assert bench.parts.models.resolve("sql").adapter == web
    await bench.parts.fleet.unload_adapter("sql")
    assert held(workers) == [{}] * 3
    with pytest.raises(ModelNotFoundError, match=r"served: tiny$"):
        bench.parts.models.resolve("sql")
    with pytest.raises(ModelNotFoundError, match="'sql' cannot be found"):
        await bench.parts.fleet.unload_adapter("sql")


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize(
    ("failure", "raised", "words"),
    [
        (InvalidRequestError("it uses DoRA", param="lora_path"), InvalidRequestError, "DoRA"),
        (WorkerLostError("power cut"), UnavailableError, "decode-1: .*power cut"),
        (None, InvalidRequestError, "different files"),
    ],
)
async def test_one_refusal_leaves_all_workers_as_they_were(
    bench: Bench, failure: Exception | None, raised: type[Exception], words: str, replaces: bool
) -> None:
    workers = await fleet(bench)
    if replaces:
        await bench.parts.fleet.load_adapter("sql", "/a/sql", replaces=False)
        for each in workers:
            await bench.report(each)
    before = held(workers)
    workers[1].load_error = failure
    if failure is None:
        workers[1].disk = {**DISK, "/a/web": "other files"}
    with pytest.raises(raised, match=words):
        await bench.parts.fleet.load_adapter("sql", "/a/web", replaces=replaces)
    assert held(workers) == before
    assert bench.parts.models.knows("sql") is replaces


async def test_an_unload_that_fails_gives_the_name_back(bench: Bench) -> None:
    workers = await fleet(bench)
    await bench.parts.fleet.load_adapter("sql", "/a/sql", replaces=False)
    # The second has forgotten it, which is what is wanted; the third cannot be told.
    workers[1].adapters.clear()
    await workers[2].die()
    with pytest.raises(UnavailableError, match="prefill-2"):
        await bench.parts.fleet.unload_adapter("sql")
    assert held(workers)[:2] == [{"sql": "/a/sql"}, {}]
    assert bench.parts.models.knows("sql")


@pytest.mark.parametrize(
    ("name", "path", "words"),
    [
        ("tiny", "/a/sql", "a model's own name"),
        (" x", "/a/sql", "printable"),
        ("x" * 513, "/a/sql", "1 to 512"),
        ("x", "/a\0", "lora_path"),
    ],
)
async def test_a_bad_name_or_path_reaches_no_worker(
    bench: Bench, name: str, path: str, words: str
) -> None:
    workers = await fleet(bench, 1)
    with pytest.raises(InvalidRequestError, match=words):
        await bench.parts.fleet.load_adapter(name, path, replaces=False)
    assert not any(each.orders for each in workers)


async def test_without_workers_that_serve_adapters_none_is_loaded(bench: Bench) -> None:
    with pytest.raises(UnavailableError, match="no worker is registered"):
        await bench.parts.fleet.load_adapter("sql", "/a/sql", replaces=False)
    plain = await bench.add_worker(say(1))
    with pytest.raises(UnsupportedError, match="--enable-lora"):
        await bench.parts.fleet.load_adapter("sql", "/a/sql", replaces=False)
    assert not plain.orders


async def test_a_worker_that_joins_gets_what_the_others_have(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.router.fleet.fleet.LOOK_S", 0.02)
    first = await worker(bench)
    await bench.parts.fleet.load_adapter("web", "/a/web", replaces=False)
    await bench.report(first)
    late = await bench.add_worker(say(1))
    late.disk, late.max_adapters = dict(DISK), 4
    # Started with other files under a name that the pool has.
    late.hold("sql", "/a/web")
    await bench.report(late)
    async with asyncio.timeout(10):
        await late.wait_loads(2)
    assert held([late]) == held([first])
    # One that drops a name, by an order of another router, does not get it again.
    late.adapters.pop("web")
    num_orders = len(late.orders)
    await bench.report(late)
    await asyncio.sleep(0.1)
    assert len(late.orders) == num_orders


@asynccontextmanager
async def served(bench: Bench, caller: Caller, *, has_keys: bool) -> AsyncIterator[AsyncBaton]:
    """A client of the router over gRPC."""
    server = RpcServer(["baton.v1.Router"])
    servicer = RouterServicer(
        one_model(bench.backend()),
        adapters=lambda _: bench.parts.fleet,
        caller_of=lambda _: caller,
        has_keys=has_keys,
    )
    router_pb2_grpc.add_RouterServicer_to_server(servicer, server.server)
    await server.start("127.0.0.1:0")
    async with AsyncBaton(f"127.0.0.1:{server.port}") as client:
        yield client
    await server.stop(0)


async def test_the_sdk_loads_asks_lists_and_unloads(bench: Bench) -> None:
    workers = await fleet(bench, 1)
    async with served(bench, ANYBODY, has_keys=False) as client:
        assert await client.load_adapter("sql", "/a/sql") == digest("sql").hex()
        assert held(workers) == [{"sql": "/a/sql"}] * 2
        assert [(m.id, m.parent, m.root) for m in await client.models()] == [
            ("tiny", "", "tiny"),
            ("sql", "tiny", "/a/sql"),
        ]
        await client.generate([5, 6], model="sql", max_tokens=2)
        assert [each.name for each in refs(workers[0]) if each] == ["sql"]
        with pytest.raises(sdk.InvalidRequestError, match="already been loaded"):
            await client.load_adapter("sql", "/a/web")
        await client.load_adapter("sql", "/a/web", in_place=True)
        await client.unload_adapter("sql")
        assert held(workers) == [{}] * 2
        with pytest.raises(sdk.ModelNotFoundError):
            await client.unload_adapter("sql")


async def test_adapters_are_an_operators_over_grpc_too(bench: Bench) -> None:
    workers = await fleet(bench, 1)
    tenant = Tenant(name="a")
    async with served(bench, Caller(tenant=tenant), has_keys=True) as client:
        for order in (client.load_adapter("sql", "/a/sql"), client.unload_adapter("sql")):
            with pytest.raises(sdk.AuthenticationError, match="operator"):
                await order
    assert not any(each.orders for each in workers)
    async with served(bench, Caller(tenant=tenant, is_operator=True), has_keys=True) as client:
        await client.load_adapter("sql", "/a/sql")
    assert held(workers) == [{"sql": "/a/sql"}] * 2
