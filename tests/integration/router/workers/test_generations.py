"""No answer is written by two models, and no worker with unexpected weights is sent anything."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from services.router.parts import open_parts
from services.router.request.resume import AnswerSoFar
from shared.directory.base import WorkerLoad
from shared.errors import GenerationGoneError, InvalidRequestError, NoWorkerError, WorkerLostError
from shared.identity import Role
from tests.fakes.router.one_pool import OnePool
from tests.fakes.scripted.decode import Script, ScriptedDecode, Step, never, say

if TYPE_CHECKING:
    from services.router.config import RouterConfig
    from tests.integration.router.conftest import Answer, Bench

X, Y = "aa" * 32, "bb" * 32
OLD = {"identity": X, "generation": 1, "joined_ms": 1}
NEW = {"identity": Y, "generation": 2, "joined_ms": 2}
WRONG = {"identity": Y, "generation": 1, "joined_ms": 2, "generation_identity": X}


async def refused(bench: Bench, *scripts: Script, **facts: Any) -> ScriptedDecode:
    """A worker that has answered its canary and is not used."""
    worker = ScriptedDecode(name=f"refused-{len(bench.workers)}")
    worker.scripts = list(scripts) or [say(9)]
    await worker.start(**facts)
    bench.stack.push_async_callback(worker.die)
    await bench.parts.registry.register(worker.record, 60)
    await until(bench, lambda: any(e.ready and e.refusal for e in endpoints(bench)))
    return worker


def endpoints(bench: Bench) -> list[Any]:
    return bench.parts.endpoints.of_role(Role.DECODE)


async def until(bench: Bench, condition: Any) -> None:
    async with asyncio.timeout(10):
        await bench.parts.endpoints.wait_until(condition)


def lose_after(*token_ids: int) -> Script:
    """Gives tokens, and then its process ends."""
    steps = [Step(token_ids=(token_id,)) for token_id in token_ids]
    return Script([*steps, Step(error=WorkerLostError("killed"))])


async def answer_until_error(bench: Bench, **params: Any) -> tuple[list[int], Exception]:
    token_ids: list[int] = []
    try:
        async for piece in bench.parts.pipeline.generate(bench.request(**params)):
            token_ids += piece.token_ids
    except Exception as error:  # noqa: BLE001 whatever it is, it is looked at
        return token_ids, error
    raise AssertionError(f"no error after {token_ids}")


async def test_a_worker_with_other_weights_gets_nothing(bench: Bench) -> None:
    right = await bench.add_worker(say(70, 71), **OLD)
    wrong = await refused(bench, **WRONG)
    for _ in range(8):
        assert (await bench.answer()).token_ids() == (70, 71)
    assert (len(right.requests), len(wrong.requests)) == (8, 0)
    (refusal,) = [e.refusal for e in endpoints(bench) if e.refusal]
    assert "not those of generation 1" in refusal


async def test_a_prefill_worker_with_other_weights_is_no_candidate(bench: Bench) -> None:
    decode = await bench.add_worker(**OLD)
    wrong = ScriptedDecode(name="prefill", role=Role.PREFILL)
    await wrong.start(**WRONG)
    bench.stack.push_async_callback(wrong.die)
    await bench.parts.registry.register(wrong.record, 60)
    await until(bench, lambda: any(e.ready for e in bench.parts.endpoints.of_role(Role.PREFILL)))
    await bench.answer(text="x" * 100)
    assert not decode.requests[0].prefill_candidates


async def test_an_answer_does_not_go_on_with_other_weights(bench: Bench) -> None:
    first = await bench.add_worker(lose_after(70, 71), **OLD)
    wrong = await refused(bench, say(90, 91), **WRONG)
    token_ids, error = await answer_until_error(bench)
    assert token_ids == [70, 71]
    assert isinstance(error, GenerationGoneError)
    assert "generation 1, identity aaaaaaaaaaaa" in str(error)
    assert "killed" in str(error)
    assert (len(first.requests), len(wrong.requests)) == (1, 0)


async def test_an_answer_goes_on_within_its_generation_and_never_beyond(bench: Bench) -> None:
    newer = await bench.add_worker(say(90, 91), **NEW)
    await bench.parts.registry.heartbeat(newer.record.worker, WorkerLoad(draining=True))
    await until(bench, lambda: not bench.usable(newer))
    lost = await bench.add_worker(lose_after(70, 71), **OLD)
    request = asyncio.create_task(bench.answer())
    await lost.wait_requests(1)
    await bench.parts.registry.heartbeat(newer.record.worker, WorkerLoad())
    other = await bench.add_worker(say(72, 73), **OLD | {"joined_ms": 3})
    assert (await request).token_ids() == (70, 71, 72, 73)
    assert list(other.requests[0].token_ids)[-2:] == [70, 71]
    assert not newer.requests


async def test_what_has_no_token_yet_may_begin_in_another_generation(bench: Bench) -> None:
    await bench.add_worker(say(70, 71), **OLD)
    newer = await bench.add_worker(lose_after(), **NEW)
    assert (await bench.answer()).token_ids() == (70, 71)
    assert len(newer.requests) == 1


async def test_new_answers_go_to_the_newest_generation_and_old_ones_end_where_they_are(
    bench: Bench,
) -> None:
    gate = asyncio.Event()
    slow = Script([Step(token_ids=(70,)), Step(token_ids=(71,), gate=gate)])
    old = await bench.add_worker(slow, say(72), **OLD)
    begun = asyncio.create_task(bench.answer())
    await old.wait_requests(1)
    new = await bench.add_worker(say(90), **NEW)
    for _ in range(5):
        assert (await bench.answer()).token_ids() == (90,)
    gate.set()
    assert (await begun).token_ids() == (70, 71)
    assert (len(old.requests), len(new.requests)) == (1, 5)


async def test_a_new_generation_waits_for_its_prefill_workers(bench: Bench) -> None:
    await bench.add_worker(role=Role.PREFILL, **OLD)
    old = await bench.add_worker(say(70), **OLD)
    new = await bench.add_worker(say(90), **NEW)
    assert (await bench.answer()).token_ids() == (70,)
    prefill = await bench.add_worker(role=Role.PREFILL, **NEW)
    assert (await bench.answer(text="x" * 100)).token_ids() == (90,)
    (candidate,) = new.requests[0].prefill_candidates
    assert candidate.worker.name == prefill.name
    assert len(old.requests) == 1


async def test_without_the_old_decode_workers_the_new_ones_do_not_wait(bench: Bench) -> None:
    await bench.add_worker(role=Role.PREFILL, **OLD | {"namespace": "cd" * 32})
    new = await bench.add_worker(say(90), **NEW)
    assert (await bench.answer(text="x" * 100)).token_ids() == (90,)
    assert not new.requests[0].prefill_candidates


async def test_the_old_generation_helps_out_while_the_new_one_is_full(bench: Bench) -> None:
    hanging = [Script([Step(token_ids=(90,)), Step(token_ids=(91,), gate=never())])]
    old = await bench.add_worker(say(70), **OLD)
    # 1,024 tokens fit its pool; one request takes most of them.
    await bench.add_worker(*hanging, max_model_len=1024, **NEW)
    taking = asyncio.create_task(bench.answer(text="x" * 900))
    await until_booked(bench)
    assert (await bench.answer(text="x" * 200, max_tokens=10)).token_ids() == (70,)
    assert len(old.requests) == 1
    taking.cancel()
    await asyncio.gather(taking, return_exceptions=True)


async def until_booked(bench: Bench) -> None:
    async with asyncio.timeout(10):
        while not any(e.work.num_held_tokens for e in endpoints(bench)):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_all_answers_to_one_request_are_of_one_generation(bench: Bench) -> None:
    old = await bench.add_worker(say(70, 71), **OLD)
    request = asyncio.create_task(bench.answer(n=3))
    await old.wait_requests(1)
    new = await bench.add_worker(say(90, 91), **NEW)
    answer = await request
    assert {answer.token_ids(index) for index in range(3)} == {(70, 71)}
    assert not new.requests


async def test_who_was_lost_keeps_its_place_and_who_left_does_not(bench: Bench) -> None:
    first = await bench.add_worker(say(70), **OLD)
    other = await refused(bench, say(90), **WRONG)
    await first.die()
    await bench.parts.registry.register(first.record, 0.01)
    async with asyncio.timeout(10):
        while len(endpoints(bench)) > 1:
            await bench.parts.registry.workers()  # it looks whose lease has ended
            await asyncio.sleep(0.005)
    with pytest.raises(NoWorkerError, match=r"refused: its weights are not those of its generati"):
        await bench.answer()
    again = await bench.add_worker(say(72), **OLD | {"joined_ms": 3, "generation_identity": X})
    assert (await bench.answer()).token_ids() == (72,)
    await bench.parts.registry.deregister(again.record.worker)
    await until(bench, lambda: not bench.usable(again))
    assert not other.requests


async def test_when_the_old_one_leaves_in_order_the_next_takes_over(bench: Bench) -> None:
    first = await bench.add_worker(say(70), **OLD)
    other = await refused(bench, say(90), **WRONG)
    await bench.parts.registry.deregister(first.record.worker)
    await until(bench, lambda: bench.usable(other))
    assert (await bench.answer()).token_ids() == (90,)


async def test_a_router_that_starts_anew_does_not_take_the_wrong_one(
    bench: Bench, config: RouterConfig
) -> None:
    """The record says what the generation was, though the first worker is not there yet."""
    await bench.add_worker(say(70), **OLD)
    wrong = await refused(bench, **WRONG)
    async with open_parts(config) as router:
        parts = OnePool(router)
        await parts.registry.register(wrong.record, 60)
        async with asyncio.timeout(10):
            await parts.endpoints.wait_until(
                lambda: any(e.ready for e in parts.endpoints.of_role(Role.DECODE))
            )
        assert not parts.endpoints.is_ready
        right = replace(bench.workers[0].record, joined_ms=3, generation_identity=X)
        await parts.registry.register(right, 60)
        async with asyncio.timeout(10):
            await parts.endpoints.wait_ready()
        usable = [e.record.worker for e in parts.endpoints.of_role(Role.DECODE) if e.usable]
        assert usable == [right.worker]


async def test_pieces_say_whose_they_are_and_what_is_resumed_stays_there(bench: Bench) -> None:
    old = await bench.add_worker(say(70, 71), **OLD)
    answer: Answer = await bench.answer()
    assert "".join(piece.identity for piece in answer.pieces) == answer.pieces[0].identity == X
    new = await bench.add_worker(say(90, 91), **NEW)
    so_far = AnswerSoFar(index=0, token_ids=(70,), identity=X)
    await bench.answer(replace(bench.request(), resumed=(so_far,)))
    assert (len(old.requests), len(new.requests)) == (2, 0)
    gone = replace(so_far, identity="cc" * 32)
    with pytest.raises(GenerationGoneError, match="identity cccccccccccc"):
        await bench.answer(replace(bench.request(), resumed=(gone,)))
    mixed = (so_far, replace(gone, index=1))
    with pytest.raises(InvalidRequestError, match="written with different weights"):
        await bench.answer(replace(bench.request(n=2), resumed=mixed))


async def test_workers_older_than_the_fields_serve_as_before(bench: Bench) -> None:
    await bench.add_worker(lose_after(70))
    await bench.add_worker(lose_after(70))
    third = await bench.add_worker(say(71))
    await bench.answer()
    await bench.answer()
    assert len(endpoints(bench)) == 3
    assert all(not e.refusal for e in endpoints(bench))
    assert third.requests
