from __future__ import annotations

import asyncio

import pytest

from services.router.admission import Admission, AdmissionLimits
from shared.errors import OverloadedError


class Visitor:
    """Somebody who wants in, and stays until told to leave."""

    def __init__(self, admission: Admission, num_tokens: int = 1, priority: int = 0) -> None:
        self.inside = asyncio.Event()
        self.leave = asyncio.Event()
        self.queue_ms = -1.0
        self.task = asyncio.create_task(self._visit(admission, num_tokens, priority))

    async def _visit(self, admission: Admission, num_tokens: int, priority: int) -> None:
        async with admission.enter(num_tokens, priority=priority) as self.queue_ms:
            self.inside.set()
            await self.leave.wait()

    async def end(self) -> None:
        self.leave.set()
        await self.task


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def _admission(**limits: float) -> Admission:
    return Admission(AdmissionLimits(**{"max_concurrent_requests": 1, **limits}))


async def test_who_finds_a_place_does_not_wait() -> None:
    admission = _admission(max_concurrent_requests=2)
    visitors = [Visitor(admission), Visitor(admission)]
    await _settle()
    assert admission.num_inside == 2
    assert all(v.queue_ms < 100 for v in visitors)
    for visitor in visitors:
        await visitor.end()
    assert admission.num_inside == 0


async def test_lower_priorities_go_first_then_first_come() -> None:
    admission = _admission()
    first = Visitor(admission)
    await _settle()
    late = [Visitor(admission, priority=p) for p in (5, 0, 5, -1)]
    await _settle()
    order = []
    await first.end()
    for _ in late:
        await _settle()
        (now,) = [i for i, v in enumerate(late) if v.inside.is_set() and not v.leave.is_set()]
        order.append(now)
        await late[now].end()
    assert order == [3, 1, 0, 2]


async def test_the_queue_is_bounded_by_requests_and_by_tokens() -> None:
    admission = _admission(max_queued_requests=2, max_queued_tokens=100)
    visitors = [Visitor(admission)]
    await _settle()
    visitors.append(Visitor(admission, num_tokens=99))
    await _settle()
    with pytest.raises(OverloadedError, match="99 tokens"):
        async with admission.enter(2):
            pass
    visitors.append(Visitor(admission, num_tokens=1))
    await _settle()
    with pytest.raises(OverloadedError, match="2 requests") as caught:
        async with admission.enter(0):
            pass
    assert caught.value.retry_after_s >= 1
    for visitor in visitors:
        await visitor.end()
    assert (admission.num_queued, admission.num_queued_tokens) == (0, 0)


async def test_a_prompt_longer_than_the_limit_may_wait_alone() -> None:
    admission = _admission(max_queued_tokens=10)
    first = Visitor(admission)
    await _settle()
    big = Visitor(admission, num_tokens=50)
    await _settle()
    assert admission.num_queued == 1
    await first.end()
    await big.end()


async def test_nobody_waits_longer_than_allowed() -> None:
    admission = _admission(max_queue_s=0.01)
    first = Visitor(admission)
    await _settle()
    with pytest.raises(OverloadedError, match="overloaded"):
        async with admission.enter(7):
            pass
    assert (admission.num_queued, admission.num_queued_tokens) == (0, 0)
    await first.end()


async def test_who_gives_up_leaves_no_trace() -> None:
    admission = _admission()
    first = Visitor(admission)
    await _settle()
    waiting = Visitor(admission)
    await _settle()
    waiting.task.cancel()
    await _settle()
    assert admission.num_queued == 0
    # Cancelled in the same moment in which it gets the place.
    unlucky = Visitor(admission)
    last = Visitor(admission)
    await _settle()
    first.leave.set()
    await first.task
    unlucky.task.cancel()
    await _settle()
    assert last.inside.is_set()
    await last.end()
    assert admission.num_inside == 0


async def test_an_error_inside_frees_the_place() -> None:
    admission = _admission()
    with pytest.raises(RuntimeError):
        async with admission.enter(1):
            raise RuntimeError
    assert admission.num_inside == 0
