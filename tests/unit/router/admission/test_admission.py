from __future__ import annotations

import asyncio
from typing import Any

import pytest

from services.router.admission.admission import Admission
from services.router.admission.entrance import AdmissionLimits
from services.router.admission.tenant import ANONYMOUS, Tenant
from shared.errors import OverloadedError, RefusalReason, UnavailableError


class Visitor:
    """Somebody who wants in, and stays until told to leave."""

    def __init__(
        self,
        admission: Admission,
        num_tokens: int = 1,
        priority: int = 0,
        tenant: Tenant = ANONYMOUS,
    ) -> None:
        self.inside = asyncio.Event()
        self.leave = asyncio.Event()
        self.queue_ms = -1.0
        self.task = asyncio.create_task(self._visit(admission, num_tokens, priority, tenant))

    async def _visit(
        self, admission: Admission, num_tokens: int, priority: int, tenant: Tenant
    ) -> None:
        async with admission.enter(num_tokens, priority=priority, tenant=tenant) as place:
            self.queue_ms = place.queue_ms
            place.num_prompt_tokens = num_tokens
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


async def test_tenants_take_turns_whoever_fills_the_queue() -> None:
    admission = _admission()
    first = Visitor(admission)
    await _settle()
    heavy, light = Tenant(name="heavy", weight=2.0), Tenant(name="light")
    flood = [Visitor(admission, num_tokens=10, tenant=heavy) for _ in range(12)]
    await _settle()
    few = [Visitor(admission, num_tokens=10, tenant=light) for _ in range(6)]
    await _settle()
    assert admission.queue_lengths() == {"heavy": 12, "light": 6}
    await first.end()
    order = ""
    left = [*flood, *few]
    while left:
        await _settle()
        (now,) = [v for v in left if v.inside.is_set()]
        order += "h" if now in flood else "l"
        left.remove(now)
        await now.end()
    # Two to one, all the way.
    assert all(order[:n].count("l") in (n // 3 - 1, n // 3, n // 3 + 1) for n in range(3, 19))


async def test_a_full_queue_is_shared_by_tenants() -> None:
    admission = _admission(max_queued_requests=4)
    first = Visitor(admission)
    await _settle()
    flood = [Visitor(admission, tenant=Tenant(name="flood")) for _ in range(4)]
    await _settle()
    modest = Visitor(admission, tenant=Tenant(name="modest"))
    await _settle()
    with pytest.raises(OverloadedError, match="uses less of it") as caught:
        await flood[3].task
    assert caught.value.reason is RefusalReason.DISPLACED
    with pytest.raises(OverloadedError) as caught:
        async with admission.enter(1, tenant=Tenant(name="flood")):
            pass
    assert caught.value.reason is RefusalReason.QUEUE_FULL
    for visitor in (first, *flood[:3], modest):
        visitor.leave.set()
    await asyncio.gather(*(v.task for v in (first, *flood[:3], modest)))
    assert (admission.num_inside, admission.num_queued) == (0, 0)


async def test_requests_wait_for_workers_that_are_asleep() -> None:
    """The queue looks by itself; the limits of all waits are theirs too."""
    asleep = True
    admission = Admission(AdmissionLimits(max_queued_requests=1), is_asleep=lambda: asleep)
    first, second = Visitor(admission), Visitor(admission)
    with pytest.raises(OverloadedError, match="waiting already"):
        await second.task
    assert (admission.num_inside, admission.num_queued) == (0, 1)
    asleep = False
    await asyncio.wait_for(first.inside.wait(), 5)
    await first.end()
    asleep = True
    impatient = Admission(AdmissionLimits(max_queue_s=0.01), is_asleep=lambda: asleep)
    with pytest.raises(UnavailableError, match="asleep"):
        await Visitor(impatient).task
    assert (impatient.num_inside, impatient.num_queued) == (0, 0)


async def test_a_request_that_waited_in_a_pause_is_told_so() -> None:
    admission = Admission(AdmissionLimits(max_queue_s=0.01))
    admission.hold()
    with pytest.raises(UnavailableError, match="paused"):
        await Visitor(admission).task
    assert (admission.num_inside, admission.num_queued) == (0, 0)


async def test_requests_wait_here_while_workers_have_no_room() -> None:
    room = False
    admission = Admission(AdmissionLimits(), has_room=lambda _: room)
    first = Visitor(admission)
    await _settle()
    # Who would be alone is let in, whatever is thought of the workers.
    assert first.inside.is_set()
    second = Visitor(admission)
    await _settle()
    assert not second.inside.is_set()
    room = True
    admission.look()
    await _settle()
    assert second.inside.is_set()
    room = False
    third = Visitor(admission)
    await _settle()
    room = True
    # Nobody says so, but the queue looks again by itself.
    await asyncio.wait_for(third.inside.wait(), 5)
    for visitor in (first, second, third):
        await visitor.end()


async def test_a_request_that_would_be_too_late_does_not_wait_longer() -> None:
    admission = _admission()
    first = Visitor(admission)
    await _settle()
    with pytest.raises(OverloadedError) as caught:
        async with admission.enter(1, max_wait_s=0.01):
            pass
    assert caught.value.reason is RefusalReason.QUEUE_TIMEOUT
    await first.end()


async def test_the_expected_wait_is_learned_from_how_the_queue_moves() -> None:
    now_s = 0.0
    admission = Admission(AdmissionLimits(max_concurrent_requests=1), clock=lambda: now_s)
    assert await admission.expected_wait_s(10) == 0
    first = Visitor(admission, num_tokens=10)
    await _settle()
    waiting = [Visitor(admission, num_tokens=10) for _ in range(20)]
    await _settle()
    for visitor in [first, *waiting[:9]]:
        now_s += 2
        await visitor.end()
        await _settle()
    # Each takes two seconds; one is inside, ten are before a newcomer.
    assert await admission.expected_wait_s(10) == pytest.approx(22, rel=0.1)
    other = Tenant(name="other")
    assert await admission.expected_wait_s(10, tenant=other) <= 4
    assert await admission.expected_wait_s(10, priority=-1) <= 4
    for visitor in waiting[9:]:
        await visitor.end()
        await _settle()
    assert await admission.expected_wait_s(10) == 0


async def test_workers_get_one_after_the_other_so_that_each_sees_what_the_last_one_took() -> None:
    num_booked = 0

    class Booked(Visitor):
        async def _visit(self, *args: Any) -> None:
            nonlocal num_booked
            async with args[0].enter(1):
                num_booked += 1
                self.inside.set()
                await self.leave.wait()
            num_booked -= 1

    admission = Admission(AdmissionLimits(), has_room=lambda _: num_booked < 2)
    visitors = [Booked(admission) for _ in range(8)]
    await _settle()
    assert (num_booked, admission.num_queued) == (2, 6)
    for visitor in visitors[:2]:
        visitor.leave.set()
    for _ in range(3):
        await _settle()
        assert num_booked == 2
    late = Booked(admission)
    await _settle()
    assert num_booked == 2
    for visitor in (*visitors, late):
        visitor.leave.set()
    await asyncio.wait_for(asyncio.gather(*(v.task for v in (*visitors, late))), 5)
    assert (admission.num_inside, admission.num_queued) == (0, 0)


async def test_who_used_nothing_of_its_place_is_not_charged_for_it() -> None:
    admission = _admission()
    first = Visitor(admission)
    await _settle()
    unlucky, other = Tenant(name="unlucky"), Tenant(name="other")
    order: list[str] = []

    async def visit(tenant: Tenant, *, works: bool) -> None:
        async with admission.enter(100, tenant=tenant) as place:
            order.append(tenant.name[0] if works else "-")
            place.num_prompt_tokens = 100 if works else 0

    late = [visit(unlucky, works=False) for _ in range(6)]  # put it no turn behind
    rest = [visit(tenant, works=True) for _ in range(4) for tenant in (unlucky, other)]
    tasks = [asyncio.create_task(visitor) for visitor in (*late, *rest)]
    await _settle()
    await first.end()
    await asyncio.gather(*tasks)
    assert "".join(order).replace("-", "") in ("ouououou", "oouououu", "uouououo")
