"""Draining: nobody new comes in, everybody inside may finish, and who does not is told why."""

from __future__ import annotations

import asyncio

import pytest

from shared.errors import DrainingError, OverloadedError, RefusalReason, WorkerLostError
from shared.worker.health.gate import RequestGate


async def inside(gate: RequestGate, leave: asyncio.Event) -> str:
    """A request that leaves when it is let go, or tidies up when it is told to."""
    async with gate.enter():
        try:
            await leave.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            raise
        return "finished"


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_drain_waits_for_those_inside() -> None:
    gate = RequestGate("decode-0")
    async with gate.enter():
        draining = asyncio.create_task(gate.drain(grace_s=30))
        await asyncio.sleep(0)
        assert not draining.done()
        with pytest.raises(DrainingError, match="decode-0"):
            async with gate.enter():
                pass
    assert await draining == 0


async def test_who_does_not_finish_is_told_why() -> None:
    gate, leave = RequestGate("decode-0"), asyncio.Event()
    requests = [asyncio.create_task(inside(gate, leave)) for _ in range(3)]
    await settle()
    assert await gate.drain(grace_s=0) == 3
    assert await gate.wait_empty(5)
    for result in await asyncio.gather(*requests, return_exceptions=True):
        assert isinstance(result, DrainingError)
        assert "decode-0 was stopped" in str(result)


async def test_an_idle_worker_drains_at_once() -> None:
    assert await RequestGate("decode-0").drain(grace_s=0) == 0


async def test_a_failed_request_leaves_too() -> None:
    gate = RequestGate("decode-0")
    with pytest.raises(ValueError, match="bug"):
        async with gate.enter():
            raise ValueError("bug")
    assert gate.num_inside == 0


async def test_a_timeout_of_the_request_itself_stays_one() -> None:
    gate = RequestGate("decode-0")
    with pytest.raises(TimeoutError):
        async with gate.enter():
            raise TimeoutError
    assert gate.num_inside == 0


async def test_a_cancelled_request_stays_cancelled() -> None:
    gate, leave = RequestGate("decode-0"), asyncio.Event()
    request = asyncio.create_task(inside(gate, leave))
    await settle()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert gate.num_inside == 0


async def test_an_unhealthy_worker_refuses_and_serves_again() -> None:
    gate, leave = RequestGate("decode-0"), asyncio.Event()
    request = asyncio.create_task(inside(gate, leave))
    await settle()
    gate.set_unhealthy("the engine is stuck")
    gate.expel(lambda: WorkerLostError("stuck"))
    with pytest.raises(WorkerLostError, match="stuck"):
        await request
    with pytest.raises(WorkerLostError, match="the engine is stuck"):
        async with gate.enter():
            pass
    gate.set_unhealthy("")
    leave.set()
    assert await inside(gate, leave) == "finished"


async def test_a_full_worker_refuses_so_that_another_can_be_tried() -> None:
    gate = RequestGate("decode-0", max_inside=1)
    async with gate.enter():
        with pytest.raises(OverloadedError, match="decode-0") as caught:
            async with gate.enter():
                pass
        assert caught.value.reason is RefusalReason.WORKER_FULL
        assert gate.num_inside == 1
    async with gate.enter():
        pass
