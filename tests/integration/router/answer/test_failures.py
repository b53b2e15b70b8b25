"""The pipeline when something goes wrong: clients leave, workers die, queues are full."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from services.router.answer.retry import MAX_FRUITLESS
from shared.errors import (
    DeadlineError,
    InternalError,
    InvalidRequestError,
    ModelNotFoundError,
    NoWorkerError,
    OverloadedError,
    UnavailableError,
    WorkerLostError,
)
from shared.errors import DrainingError as Draining
from shared.identity import Role
from tests.fakes.scripted.decode import Script, Step, never, say

if TYPE_CHECKING:
    from tests.integration.router.conftest import Bench

EOS = 0


@pytest.mark.parametrize("n", [1, 3])
async def test_closing_the_stream_cancels_every_call(bench: Bench, n: int) -> None:
    script = Script([Step(token_ids=(5,)), Step(gate=never())])
    worker = await bench.add_worker(script)
    async with aclosing(bench.parts.pipeline.generate(bench.request(n=n))) as pieces:
        async for _ in pieces:
            if len(worker.requests) == n:
                break
    await worker.wait_cancelled(n)
    assert bench.is_idle()


async def test_closing_before_the_first_token_cancels_too(bench: Bench) -> None:
    worker = await bench.add_worker(Script([Step(gate=never())]))
    task = asyncio.create_task(bench.answer())
    await worker.wait_requests(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await worker.wait_cancelled()
    assert bench.is_idle()


async def test_a_worker_lost_before_the_first_token_is_replaced(bench: Bench) -> None:
    broken = await bench.add_worker(Script([Step(gate=never())]))
    task = asyncio.create_task(bench.answer())
    await broken.wait_requests(1)
    await bench.add_worker(say(*bench.ids("ok")))
    await broken.die()
    assert (await task).text() == "ok"
    assert not bench.usable(broken)


async def test_a_worker_that_drains_is_replaced(bench: Bench) -> None:
    draining = await bench.add_worker(Script([Step(error=Draining("no more"))]))
    other = await bench.add_worker(say(*bench.ids("ok")))
    bench.parts.endpoints.of_role(Role.DECODE)[1].work.num_decoding += 100
    assert (await bench.answer()).text() == "ok"
    bench.parts.endpoints.of_role(Role.DECODE)[1].work.num_decoding -= 100
    assert not bench.usable(draining)
    assert (await bench.answer()).text() == "ok"
    assert (len(draining.requests), len(other.requests)) == (1, 2)


async def test_without_another_worker_the_first_error_is_told(bench: Bench) -> None:
    worker = await bench.add_worker(Script([Step(error=WorkerLostError("power cut"))]))
    with pytest.raises(WorkerLostError, match="power cut"):
        await bench.answer()
    assert len(worker.requests) == 1


async def test_a_request_that_takes_every_worker_down_is_given_up(bench: Bench) -> None:
    for _ in range(6):
        await bench.add_worker(Script([Step(error=WorkerLostError("power cut"))]))
    with pytest.raises(WorkerLostError):
        await bench.answer()
    assert sum(len(worker.requests) for worker in bench.workers) == 1 + MAX_FRUITLESS


async def test_a_stream_without_an_end_is_a_lost_worker(bench: Bench) -> None:
    await bench.add_worker(say(70, 71, finish=None))
    with pytest.raises(WorkerLostError, match="finish reason"):
        await bench.answer()


async def test_what_is_wrong_with_the_request_is_not_retried(bench: Bench) -> None:
    for _ in range(2):
        error = InvalidRequestError("no such thing", param="top_p")
        await bench.add_worker(Script([Step(error=error)]))
    with pytest.raises(InvalidRequestError) as caught:
        await bench.answer()
    assert caught.value.param == "top_p"
    assert sum(len(worker.requests) for worker in bench.workers) == 1
    assert all(bench.usable(worker) for worker in bench.workers)


async def test_a_bug_on_a_worker_sends_the_canary_again(bench: Bench) -> None:
    worker = await bench.add_worker(Script([Step(error=InternalError("bug"))]), say(70))
    with pytest.raises(InternalError):
        await bench.answer()
    async with asyncio.timeout(10):
        await bench.parts.endpoints.wait_ready()
    assert len(worker.canaries) == 2
    assert (await bench.answer()).token_ids() == (70,)


async def test_no_worker_is_unavailable(bench: Bench) -> None:
    with pytest.raises(NoWorkerError) as caught:
        await bench.answer()
    assert isinstance(caught.value, UnavailableError)


@pytest.mark.parametrize("bench", [{"request_timeout_s": 0.3}], indirect=True)
async def test_a_request_ends_at_its_deadline(bench: Bench) -> None:
    worker = await bench.add_worker(Script([Step(gate=never())]))
    with pytest.raises(DeadlineError):
        await bench.answer()
    await worker.wait_cancelled()


LIMITS: dict[str, Any] = {"max_concurrent_requests": 1, "max_queued_requests": 1}


@pytest.mark.parametrize("bench", [LIMITS], indirect=True)
async def test_what_the_queue_cannot_hold_is_refused(bench: Bench) -> None:
    gate = asyncio.Event()
    worker = await bench.add_worker(Script([Step(token_ids=(70,), gate=gate)]))
    first = asyncio.create_task(bench.answer())
    await worker.wait_requests(1)
    second = asyncio.create_task(bench.answer())
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError) as caught:
        await bench.answer()
    assert caught.value.retry_after_s >= 1
    gate.set()
    await first
    timings = (await second).last.timings
    assert timings is not None
    assert timings.router_queue_ms > 0


async def test_a_repeated_request_id_is_made_unique(bench: Bench) -> None:
    gate = asyncio.Event()
    worker = await bench.add_worker(Script([Step(token_ids=(70,), gate=gate)]))
    tasks = [asyncio.create_task(bench.answer()) for _ in range(3)]
    await worker.wait_requests(3)
    gate.set()
    await asyncio.gather(*tasks)
    assert len({request.request_id for request in worker.requests}) == 3


async def test_bad_requests_reach_no_worker(bench: Bench) -> None:
    worker = await bench.add_worker()
    with pytest.raises(ModelNotFoundError):
        await bench.answer(replace(bench.request(), model="other"))
    for request, param in (
        (replace(bench.request(), prompt_token_ids=()), "prompt"),
        (replace(bench.request(), priority=2**31), "priority"),
        (bench.request(n=0), "n"),
        (bench.request("x" * 600), "prompt"),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            await bench.answer(request)
        assert caught.value.param == param
    assert worker.requests == []


async def test_whatever_clients_do_nothing_is_left_over(bench: Bench) -> None:
    rng = random.Random(11)
    steps = [Step(token_ids=(70 + i % 9,)) for i in range(40)]
    workers = [await bench.add_worker(Script(steps)) for _ in range(2)]
    await bench.add_worker(role=Role.PREFILL)

    async def client() -> None:
        num_wanted = rng.choice([0, 1, 3, 20, 10_000])
        stop = rng.choice([(), (bench.parts.tokenizer.decode([75, 76]),)])
        request = bench.request(n=rng.choice([1, 2, 5]), stop=stop)
        async with aclosing(bench.parts.pipeline.generate(request)) as pieces:
            async for _ in pieces:
                num_wanted -= 1
                if num_wanted <= 0:
                    return

    tasks = [asyncio.create_task(client()) for _ in range(60)]
    for task in rng.sample(tasks, 15):
        await asyncio.sleep(0.002)
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert [t for t in tasks if not t.cancelled() and t.exception()] == []
    assert bench.is_idle()
    async with asyncio.timeout(5):
        for worker in workers:
            await worker.wait_idle()


async def test_load_is_spread(bench: Bench) -> None:
    gate = asyncio.Event()
    script = Script([Step(token_ids=(70,), gate=gate)])
    workers = [await bench.add_worker(script) for _ in range(3)]
    tasks = [asyncio.create_task(bench.answer()) for _ in range(9)]
    for worker in workers:
        await worker.wait_requests(3)
    gate.set()
    await asyncio.gather(*tasks)
    assert [len(worker.requests) for worker in workers] == [3, 3, 3]
