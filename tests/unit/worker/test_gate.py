"""Draining: nobody new comes in, everybody inside may finish."""

from __future__ import annotations

import asyncio

import pytest

from shared.errors import DrainingError, OverloadedError, RefusalReason
from shared.worker.gate import RequestGate


async def test_drain_waits_for_those_inside() -> None:
    gate = RequestGate("decode-0")
    with gate.enter():
        draining = asyncio.create_task(gate.drain(grace_s=30))
        await asyncio.sleep(0)
        assert not draining.done()
        with pytest.raises(DrainingError, match="decode-0"), gate.enter():
            pass
    assert await draining == 0


async def test_drain_reports_who_did_not_finish() -> None:
    gate = RequestGate("decode-0")
    with gate.enter(), gate.enter():
        assert await gate.drain(grace_s=0) == 2


async def test_an_idle_worker_drains_at_once() -> None:
    assert await RequestGate("decode-0").drain(grace_s=0) == 0


def test_a_failed_request_leaves_too() -> None:
    gate = RequestGate("decode-0")
    with pytest.raises(ValueError, match="bug"), gate.enter():
        raise ValueError("bug")
    assert gate.num_inside == 0


def test_a_full_worker_refuses_so_that_another_can_be_tried() -> None:
    gate = RequestGate("decode-0", max_inside=1)
    with gate.enter():
        with pytest.raises(OverloadedError, match="decode-0") as caught, gate.enter():
            pass
        assert caught.value.reason is RefusalReason.WORKER_FULL
        assert gate.num_inside == 1
    with gate.enter():
        pass
