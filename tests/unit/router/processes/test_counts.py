"""What processes hold together never exceeds a limit, and the end of one gives its part back."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.admission.entrance import AdmissionLimits
from services.router.admission.tenant import ANONYMOUS, Tenant
from services.router.processes.boards import HubBoard
from services.router.processes.entrance import SharedEntrance, SharedQuotas
from services.router.processes.hub import Hub
from services.router.processes.link import LinkLostError
from services.router.processes.process import RouterProcess, SharedLock
from services.router.processes.wire import Told
from services.router.routing.room import UNBOUNDED, Left
from shared.errors import (
    BatonError,
    InvalidRequestError,
    OverloadedError,
    RefusalReason,
    UnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MODEL = "m"
HEAVY = Tenant(name="heavy")
TENANTS = (HEAVY, Tenant(name="light", weight=2.0))


class Process:
    """A process of a router, as far as it counts. `kill` is what the kernel does at its end."""

    def __init__(self) -> None:
        self.process = RouterProcess()
        self.left = UNBOUNDED
        self.entrance = SharedEntrance(
            self.process.link, MODEL, left=lambda: self.left, is_asleep=lambda: False
        )
        self.quotas = SharedQuotas(self.process.link)
        self.visits: list[Visit] = []
        self.is_dead = False

    async def join(self, hub: Hub) -> Process:
        ours, theirs = socket.socketpair()
        await hub.add(theirs)
        await self.process.open(ours)
        return self

    def visit(self, tenant: Tenant = ANONYMOUS, num_tokens: int = 1) -> Visit:
        visit = Visit(self.entrance, tenant, num_tokens)
        self.visits.append(visit)
        return visit

    def do(self, what: str, choice: int) -> None:
        """Take one of the steps below."""
        visits = [visit for visit in self.visits if not visit.task.done()]
        if what == "enter":
            self.visit(TENANTS[choice % 2], choice)
        elif what == "kill":
            self.kill()
        elif visits and what == "leave":
            visits[choice % len(visits)].leave.set()
        elif visits:
            visits[choice % len(visits)].task.cancel()

    @property
    def num_inside(self) -> int:
        return sum(visit.is_inside for visit in self.visits)

    def kill(self) -> None:
        self.is_dead = True
        transport = self.process.link._transport
        assert transport is not None
        transport.abort()
        for visit in self.visits:
            visit.task.cancel()


class Visit:
    """A request that stays until told to leave."""

    def __init__(self, entrance: SharedEntrance, tenant: Tenant, num_tokens: int) -> None:
        self.is_inside = False
        self.error: BatonError | None = None
        self.leave = asyncio.Event()
        self.task = asyncio.create_task(self._visit(entrance, tenant, num_tokens))

    async def _visit(self, entrance: SharedEntrance, tenant: Tenant, num_tokens: int) -> None:
        try:
            async with entrance.enter(num_tokens, tenant=tenant) as place:
                self.is_inside = True
                try:
                    await self.leave.wait()
                finally:
                    self.is_inside = False
                place.num_prompt_tokens = num_tokens
        except BatonError as error:
            self.error = error


def held(process: Process) -> bool:
    return process.entrance.is_held


def inside(*visits: Visit) -> list[bool]:
    return [visit.is_inside for visit in visits]


async def settled(*processes: Process) -> None:
    """Return when all that was sent has been taken, and what it caused."""
    for _ in range(3):
        for each in processes:
            if not each.is_dead:
                await each.entrance.expected_wait_s(1)
        await asyncio.sleep(0)


def run(test: Callable[[AsyncExitStack], Awaitable[None]]) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            await test(stack)

    asyncio.run(main())


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["enter", "enter", "enter", "leave", "give up", "kill"]),
        st.integers(0, 2),
        st.integers(0, 30),
        st.booleans(),
    ),
    max_size=40,
)


@settings(max_examples=40, deadline=None)
@given(limit=st.integers(1, 4), queue=st.integers(0, 6), steps=STEPS)
def test_counts_keep_the_limit_and_come_back_whatever_is_killed(
    limit: int, queue: int, steps: list[tuple[str, int, int, bool]]
) -> None:
    async def test(_: AsyncExitStack) -> None:
        limits = AdmissionLimits(max_concurrent_requests=limit, max_queued_requests=queue)
        hub = Hub({MODEL: limits})
        admission = hub.places(MODEL).admission
        processes = [await Process().join(hub) for _ in range(3)]

        def check() -> None:
            assert sum(each.num_inside for each in processes) <= limit
            assert admission.num_inside <= limit
            assert admission.num_queued <= queue

        for what, number, choice, settles in steps:
            if processes[number].is_dead:
                processes[number] = await Process().join(hub)
            processes[number].do(what, choice)
            check()
            if settles:
                await settled(*processes)
                check()
        await settled(*processes)
        alive = [each for each in processes if not each.is_dead]
        # With none alive nothing asks the hub, so that it may not know yet; see below.
        if alive:
            assert admission.num_inside == sum(each.num_inside for each in alive)
        # All that stay leave: those that wait get in.
        for each in alive:
            for visit in each.visits:
                visit.leave.set()
        while any(not visit.task.done() for each in alive for visit in each.visits):
            await settled(*alive)
            check()
        for each in alive:
            assert each.entrance.num_inside == each.entrance.num_queued == 0
            each.kill()
        await asyncio.wait_for(hub.become_empty(), 10)
        await asyncio.sleep(0)
        assert admission.num_inside == admission.num_queued == admission.num_queued_tokens == 0
        assert not hub.places(MODEL)._stays

    run(test)


async def pair(limits: AdmissionLimits | None = None) -> tuple[Hub, Process, Process]:
    hub = Hub({MODEL: limits or AdmissionLimits()})
    return hub, await Process().join(hub), await Process().join(hub)


async def test_processes_share_a_queue_that_is_fair() -> None:
    limits = AdmissionLimits(max_concurrent_requests=1, max_queued_requests=4)
    _, one, two = await pair(limits)
    first = one.visit(HEAVY, 100)
    await settled(one, two)
    heavy = [one.visit(HEAVY, 100) for _ in range(4)]
    await settled(one, two)
    # The queue is full of one tenant's requests: the last of them makes room, in its process.
    light = two.visit(TENANTS[1])
    await settled(one, two)
    assert [visit.task.done() for visit in heavy] == [False, False, False, True]
    error = heavy[3].error
    assert isinstance(error, OverloadedError)
    assert error.reason is RefusalReason.DISPLACED
    assert error.retry_after_s >= 1
    assert inside(light) == [False]
    assert await one.entrance.expected_wait_s(10) > 0
    assert (one.entrance.num_queued, two.entrance.num_queued) == (3, 1)
    assert two.entrance.queue_lengths() == {"light": 1}
    first.leave.set()
    await settled(one, two)
    # And it is next, though it came last.
    assert inside(light, *heavy) == [True, False, False, False, False]
    one.kill()
    two.kill()


async def test_a_held_router_holds_in_all_processes() -> None:
    _, one, two = await pair()
    one.process.share_entrance(MODEL, one.entrance, None)  # type: ignore[arg-type]
    two.process.share_entrance(MODEL, two.entrance, None)  # type: ignore[arg-type]
    one.entrance.hold()
    await settled(one, two)
    assert held(two)
    visit = two.visit()
    await settled(one, two)
    assert inside(visit) == [False]
    two.entrance.release()
    await settled(one, two)
    assert inside(visit) == [True]
    assert not held(one)
    one.kill()
    two.kill()


async def test_workers_room_is_that_of_all_bookings() -> None:
    """A request that was let in is counted until its process has it in its book."""
    _, one, two = await pair()
    one.left = two.left = Left(1, 100)
    one.entrance.say_room()
    await settled(one, two)
    first = one.visit(num_tokens=10)
    await settled(one, two)
    assert inside(first) == [True]
    one.left = two.left = Left(0, 100)
    one.entrance.say_room()
    waiting = two.visit(num_tokens=10)
    await settled(one, two)
    assert inside(waiting) == [False]
    two.left = Left(1, 9)
    two.entrance.say_room()
    await settled(one, two)
    assert inside(waiting) == [False]
    two.left = Left(1, 10)
    two.entrance.say_room()
    await settled(one, two)
    assert inside(waiting) == [True]
    one.kill()
    two.kill()


async def test_no_two_take_the_same_room_and_one_that_gives_up_leaves_the_queue() -> None:
    hub, one, two = await pair()
    one.entrance._left = lambda: Left(1 - one.num_inside, 100)
    one.entrance.say_room()
    await settled(one, two)
    # The hub hears of both before the first one is booked.
    first, second = one.visit(), one.visit()
    await settled(one, two)
    assert inside(first, second) == [True, False]
    assert hub.places(MODEL).admission.num_queued == 1
    second.task.cancel()
    await settled(one, two)
    assert hub.places(MODEL).admission.num_queued == 0
    one.kill()
    two.kill()


async def test_a_tenant_has_its_limits_once() -> None:
    hub, one, two = await pair()
    tenant = Tenant(name="t", max_concurrent_requests=1, max_tokens_per_minute=1000)
    async with one.quotas.enter(tenant, 600) as permit:
        with pytest.raises(OverloadedError) as caught:
            await two.quotas.enter(tenant, 1).__aenter__()
        assert caught.value.reason is RefusalReason.TENANT_REQUESTS
        assert dict(two.quotas.headers(tenant))["x-ratelimit-remaining-requests"] == "0"
        permit.num_tokens = 300
        assert one.quotas.running() == {"t": 1}
    assert one.quotas.running() == two.quotas.running() == {}
    await settled(one, two)
    with pytest.raises(OverloadedError) as caught:
        await two.quotas.enter(tenant, 800).__aenter__()
    assert caught.value.reason is RefusalReason.TENANT_TOKENS
    with pytest.raises(InvalidRequestError) as wrong:
        await two.quotas.enter(tenant, 1001).__aenter__()
    assert wrong.value.param == "max_tokens"
    # What a process had set aside comes back with its end.
    await one.quotas.enter(tenant, 700).__aenter__()
    one.kill()
    await settled(two)
    async with two.quotas.enter(tenant, 690):
        pass
    async with two.quotas.enter(ANONYMOUS, 10**9):
        assert two.quotas.headers(ANONYMOUS) == []
        assert two.quotas.running() == {"": 1}
    two.kill()
    await hub.become_empty()


async def test_a_lock_of_a_process_that_ends_goes_on_to_the_next() -> None:
    _, one, two = await pair()
    first, second = SharedLock(one.process.link, "l"), SharedLock(two.process.link, "l")
    async with second:
        assert second.locked()
        assert not first.locked()
        waiting = asyncio.create_task(first.__aenter__())
        await settled(one, two)
        assert not waiting.done()
        # One that is given up is not left behind.
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
    await first.__aenter__()
    taking = asyncio.create_task(second.__aenter__())
    await settled(one, two)
    assert not taking.done()
    one.kill()
    await asyncio.wait_for(taking, 10)
    two.kill()


async def test_one_process_plans_and_another_one_after_its_end() -> None:
    _, one, two = await pair()
    first, second = HubBoard(one.process.link, MODEL), HubBoard(two.process.link, MODEL)
    led = await first.exchange(b"1")
    assert (led.leads, led.term, list(led.reports)) == (True, 1, [b"1"])
    heard = await second.exchange(b"2")
    assert (heard.leads, list(heard.reports)) == (False, [b"1", b"2"])
    assert not await second.claim(1, cooldown_s=60)
    assert not await second.decide(1, b"d")
    assert await first.claim(1, cooldown_s=60)
    assert not await first.claim(1, cooldown_s=60)
    assert await first.decide(1, b"d")
    one.kill()
    await settled(two)
    leads = await second.exchange(b"2")
    assert (leads.leads, leads.term, leads.decision) == (True, 2, b"d")
    assert list(leads.reports) == [b"2"]
    assert leads.moved_ago_s is not None
    await second.resign()
    assert (await second.exchange(b"2")).term == 3
    two.kill()


async def test_processes_ask_and_order_each_other() -> None:
    hub, one, two = await pair()
    three = await Process().join(hub)
    for each in (one, two, three):
        each.process.link.tell(Told.READY)
    silent = await Process().join(hub)
    orders: list[object] = []

    async def answer(body: object) -> object:
        if body == "fail":
            raise UnavailableError("not now")
        return [body, 2]

    two.process.on_ask("q", answer)
    two.process.on_order("o", orders.append)
    await settled(one, two, three)
    # The third one has nothing to say, and the fourth one is not asked: it still starts.
    silent.process.asked = None  # type: ignore[assignment,method-assign]
    assert await one.process.ask_others("q", "x") == [["x", 2]]
    with pytest.raises(UnavailableError, match="not now"):
        await one.process.ask_others("q", "fail")
    one.process.order("o", [1])
    await settled(one, two)
    assert orders == [[1]]
    three.kill()
    assert await two.process.ask_others("q") == []
    one.kill()
    with pytest.raises(LinkLostError):
        await one.process.ask_others("q")
    two.kill()
    silent.kill()
