"""Who is let in, who is kept out, and what happens when workers come back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from services.router.workers import endpoints
from shared.directory.base import STAGE, WorkerLoad
from shared.errors import InternalError, NoWorkerError
from shared.identity import Role, WorkerId
from tests.fakes.scripted.decode import ScriptedDecode, say

if TYPE_CHECKING:
    from tests.integration.router.conftest import Bench


async def _until(bench: Bench, worker: ScriptedDecode, *, usable: bool) -> None:
    async with asyncio.timeout(10):
        await bench.parts.endpoints.wait_until(lambda: bench.usable(worker) is usable)


async def test_a_worker_is_ready_after_its_canary(bench: Bench) -> None:
    assert bench.parts.endpoints.not_ready_because() == ["no decode worker is ready"]
    worker = await bench.add_worker()
    assert len(worker.canaries) == 1
    assert bench.parts.endpoints.not_ready_because() == []


async def test_requests_wait_for_a_worker_that_sleeps_and_wakes_up(bench: Bench) -> None:
    """It leaves in order, and comes back as another one that has to answer its canary first."""
    worker = ScriptedDecode(canary_error=InternalError("its kernels are not warm yet"))
    await worker.start()
    asleep = replace(worker.record, worker=WorkerId.born("decode-0"), labels={STAGE: "asleep"})
    pool, registry = bench.parts.endpoints, bench.parts.registry
    await registry.register(asleep, 60)
    async with asyncio.timeout(10):
        await pool.wait_until(lambda: pool.is_asleep)
    assert pool.not_ready_because() == [endpoints.ASLEEP]
    waiting = asyncio.ensure_future(bench.answer())
    await registry.deregister(asleep.worker)
    await registry.register(worker.record, 60)
    await worker.wait_canaries(2)
    assert pool.is_asleep
    assert bench.parts.admission.num_queued == 1
    worker.canary_error = None
    assert (await waiting).text()
    assert not pool.is_asleep
    await registry.deregister(worker.record.worker)
    async with asyncio.timeout(10):
        await pool.wait_until(lambda: not pool.of_role(Role.DECODE))
    assert not pool.is_asleep, "it is gone, so no one will wake it up"
    await worker.die()


async def test_a_missing_prefill_worker_is_noted_and_no_reason_to_refuse(bench: Bench) -> None:
    assert bench.parts.endpoints.notes() == []
    await bench.add_worker()
    [note] = bench.parts.endpoints.notes()
    assert note.startswith("no prefill worker is ready")
    assert bench.parts.endpoints.is_ready
    await bench.answer()
    await bench.add_worker(role=Role.PREFILL)
    assert bench.parts.endpoints.notes() == []


async def test_a_worker_that_fails_its_canary_gets_nothing_until_it_succeeds(
    bench: Bench,
) -> None:
    worker = ScriptedDecode(canary_error=InternalError("broken kernel"))
    await worker.start()
    await bench.parts.registry.register(worker.record, 60)
    await worker.wait_canaries(2)
    assert not bench.parts.endpoints.is_ready
    with pytest.raises(NoWorkerError, match="not ready"):
        await bench.answer()
    worker.canary_error = None
    await _until(bench, worker, usable=True)
    await bench.answer()
    await worker.die()


async def test_another_process_on_the_same_address_is_not_the_worker(bench: Bench) -> None:
    worker = await bench.add_worker()
    ghost = replace(worker.record, worker=WorkerId("ghost", "0"))
    await bench.parts.registry.register(ghost, 60)
    for _ in range(20):
        await asyncio.sleep(0.005)
    assert [e.ready for e in bench.parts.endpoints.of_role(Role.DECODE)] == [True, False]


async def test_a_worker_of_another_model_is_left_alone(bench: Bench) -> None:
    worker = ScriptedDecode()
    await worker.start(model="other")
    await bench.parts.registry.register(worker.record, 60)
    await bench.add_worker()
    assert len(worker.canaries) == 0
    assert len(bench.parts.endpoints.of_role(Role.DECODE)) == 1
    await worker.die()


async def test_a_draining_worker_gets_nothing_new(bench: Bench) -> None:
    worker = await bench.add_worker()
    await bench.parts.registry.heartbeat(worker.record.worker, WorkerLoad(draining=True))
    await _until(bench, worker, usable=False)
    with pytest.raises(NoWorkerError, match="draining"):
        await bench.answer()
    await bench.parts.registry.heartbeat(worker.record.worker, WorkerLoad())
    await _until(bench, worker, usable=True)


async def test_a_restarted_worker_replaces_its_former_self(bench: Bench) -> None:
    first = await bench.add_worker(name="d")
    await first.die()
    second = await bench.add_worker(say(*bench.ids("new")), name="d")
    assert [e.record.worker for e in bench.parts.endpoints.of_role(Role.DECODE)] == [
        second.record.worker
    ]
    assert (await bench.answer()).text() == "new"


async def test_a_stream_outlives_its_workers_lease(bench: Bench) -> None:
    """Heartbeats can fail while the worker works: the stream decides."""
    gate = asyncio.Event()
    script = say(70, 71)
    script.steps = [script.steps[0], replace(script.steps[1], gate=gate)]
    worker = await bench.add_worker(script)
    task = asyncio.create_task(bench.answer())
    await worker.wait_requests(1)
    await bench.parts.registry.deregister(worker.record.worker)
    await _until(bench, worker, usable=False)
    gate.set()
    assert (await task).token_ids() == (70, 71)
    # The channel goes when the next worker comes or leaves.
    await bench.add_worker()
    assert len((await bench.answer()).token_ids()) == 1


async def test_a_request_waits_for_a_worker_whose_lease_has_just_ended(bench: Bench) -> None:
    """A clock that jumps ends every lease at once, and no worker."""
    worker = await bench.add_worker(say(70, 71))
    await bench.parts.registry.deregister(worker.record.worker)
    await _until(bench, worker, usable=False)
    task = asyncio.create_task(bench.answer())
    await asyncio.sleep(0.1)
    assert not task.done()
    await bench.parts.registry.register(worker.record, 60)
    assert (await task).token_ids() == (70, 71)


async def test_who_has_been_gone_for_longer_is_not_waited_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await bench.add_worker(say(70))
    monkeypatch.setattr(endpoints, "RETURN_S", 0.2)
    await bench.parts.registry.deregister(worker.record.worker)
    await _until(bench, worker, usable=False)
    with pytest.raises(NoWorkerError, match="no decode worker is registered"):
        await bench.answer()
    assert bench.is_idle()


async def test_the_longest_context_is_learned_and_remembered(bench: Bench) -> None:
    with pytest.raises(NoWorkerError):
        _ = bench.parts.models.max_model_len
    small = await bench.add_worker(max_model_len=64)
    big = await bench.add_worker(say(70), max_model_len=256)
    assert bench.parts.models.max_model_len == 256
    await bench.answer(text="x" * 100, max_tokens=10)
    assert (len(small.requests), len(big.requests)) == (0, 1)
    for worker in (small, big):
        await bench.parts.registry.deregister(worker.record.worker)
        await _until(bench, worker, usable=False)
    assert bench.parts.models.max_model_len == 256


@pytest.mark.parametrize("role", [Role.DECODE, Role.PREFILL])
async def test_a_worker_that_calls_itself_unhealthy_is_left_alone_until_it_is_well(
    bench: Bench, role: Role
) -> None:
    worker = await bench.add_worker(role=role)
    num_canaries = len(worker.canaries)
    await bench.parts.registry.heartbeat(worker.record.worker, WorkerLoad(unhealthy=True))
    await _until(bench, worker, usable=False)
    if role is Role.DECODE:
        # It answers, but it knows better.
        await worker.wait_canaries(num_canaries + 2)
        assert not bench.usable(worker)
    await bench.parts.registry.heartbeat(worker.record.worker, WorkerLoad())
    await _until(bench, worker, usable=True)


async def test_a_worker_that_misses_its_visits_is_left_alone(bench: Bench) -> None:
    worker = await bench.add_worker()
    await bench.parts.endpoints.visit()
    assert bench.usable(worker)
    await worker.die()
    await bench.parts.endpoints.visit()
    assert bench.usable(worker)
    await bench.parts.endpoints.visit()
    assert not bench.usable(worker)
