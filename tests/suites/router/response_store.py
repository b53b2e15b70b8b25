"""What every store of responses must do. Subclasses provide `make`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from services.router.openai.responses_api.stored.base import StoredEvent, StoredResponse

if TYPE_CHECKING:
    from services.router.openai.responses_api.stored.base import ResponseStore


class Clock:
    """A clock that only tests move."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class MakeStore(Protocol):
    """Returns an empty store with these bounds; its time is the clock's."""

    def __call__(
        self,
        *,
        entries: int = 100,
        num_bytes: int = 1000,
        age_s: float = 60,
        event_bytes: int = 500,
    ) -> ResponseStore:
        """Make it."""


def entry(
    name: str, tenant: str = "a", *, size: int = 10, status: str = "in_progress"
) -> StoredResponse:
    return StoredResponse(
        response_id=name,
        tenant=tenant,
        status=status,
        background=False,
        items=b"i" * (size // 2),
        response=b"r" * (size - size // 2),
    )


async def found(store: ResponseStore, names: str, tenant: str = "a") -> str:
    return "".join([name for name in names if await store.get(tenant, name) is not None])


def event(number: int, *, size: int = 1, is_last: bool = False) -> StoredEvent:
    return StoredEvent(number, b"e" * size, is_last)


async def numbers(store: ResponseStore, name: str, *, after: int = -1) -> list[int]:
    return [each.number for each in await store.events("a", name, after=after)]


class ResponseStoreSuite:
    async def test_an_entry_is_its_tenants(self, make: MakeStore) -> None:
        store = make()
        assert await store.put(entry("x", status="done"))
        assert await store.put(entry("x", "b", status="other"))
        mine, theirs = await store.get("a", "x"), await store.get("b", "x")
        assert mine is not None
        assert theirs is not None
        assert (mine.status, theirs.status) == ("done", "other")
        assert await store.get("", "x") is None
        assert not await store.delete("c", "x")
        assert await store.delete("a", "x")
        assert not await store.delete("a", "x")
        assert await store.get("a", "x") is None
        assert await store.get("b", "x") is not None

    async def test_the_least_recently_used_goes_first(self, make: MakeStore) -> None:
        store = make(entries=3)
        for name in "wxyz":
            assert await store.put(entry(name))
        assert await found(store, "wxyz") == "xyz"
        await store.get("a", "x")
        await store.put(entry("v"))
        assert await found(store, "xyzv") == "xzv"

    async def test_an_entry_that_is_written_again_counts_once(self, make: MakeStore) -> None:
        store = make(num_bytes=100)
        for _ in range(5):
            assert await store.put(entry("x", size=60))
        assert await store.put(entry("y", size=40))
        assert await found(store, "xy") == "xy"
        assert await store.put(entry("z", size=1))
        assert await found(store, "xyz") == "yz"

    async def test_what_does_not_fit_is_not_kept(self, make: MakeStore) -> None:
        store = make(num_bytes=100)
        await store.put(entry("x", size=20))
        assert not await store.put(entry("y", size=101))
        assert not await store.put(entry("x", size=101))
        assert await found(store, "xy") == ""
        assert await store.put(entry("z", size=100))

    async def test_a_tenant_that_stores_much_displaces_its_own(self, make: MakeStore) -> None:
        store = make(entries=10, num_bytes=100)
        await store.put(entry("x", "quiet", size=30))
        for name in "abcdefgh":
            assert await store.put(entry(name, "loud", size=20))
        assert await found(store, "x", "quiet") == "x"
        assert await found(store, "abcdefgh", "loud") == "fgh"

    async def test_entries_grow_old(self, make: MakeStore, clock: Clock) -> None:
        store = make()
        await store.put(entry("x"))
        clock.now_s += 40
        await store.put(entry("y"))
        # A use is no reason to stay; a new writing is.
        await store.get("a", "x")
        await store.put(entry("y"))
        clock.now_s += 20
        assert await found(store, "xy") == "y"
        clock.now_s += 40
        assert await found(store, "xy") == ""
        # Nothing is left of them.
        assert await store.put(entry("z", size=1000))

    async def test_an_entry_comes_back_as_it_was(self, make: MakeStore) -> None:
        store = make()
        await store.check()
        strange = StoredResponse(
            response_id="a:b\n",
            tenant="é:%",
            status="queued",
            background=True,
            items=b"\x00\xff",
            response="é".encode(),
        )
        assert await store.put(strange)
        assert await store.get("é:%", "a:b\n") == strange
        assert await store.get("é", "%:a:b\n") is None

    async def test_what_has_ended_stays_as_it_is(self, make: MakeStore) -> None:
        store = make()
        for status in ("queued", "in_progress", "failed", "completed"):
            assert await store.put(entry("x", status=status))
        kept = await store.get("a", "x")
        assert kept is not None
        assert kept.status == "failed"

    async def test_what_was_deleted_while_it_was_made_does_not_come_back(
        self, make: MakeStore, clock: Clock
    ) -> None:
        store = make()
        for name, status in (("x", "in_progress"), ("y", "completed")):
            await store.put(entry(name, status=status))
            assert await store.delete("a", name)
        assert not await store.put(entry("x", status="completed"))
        await store.add_events("a", "x", [event(0)])
        assert await found(store, "x") == ""
        assert await numbers(store, "x") == []
        assert await store.put(entry("y"))
        assert await store.put(entry("x", "b"))

    async def test_events_follow_each_other(self, make: MakeStore) -> None:
        store = make()
        await store.add_events("a", "x", [event(0)])
        assert await numbers(store, "x") == []
        await store.put(entry("x"))
        await store.add_events("a", "x", [event(0), event(1)])
        # An attempt whose answer was lost is made again.
        await store.add_events("a", "x", [event(1), event(2)])
        await store.put(entry("x", status="completed"))
        await store.add_events("a", "x", [event(3, is_last=True)])
        assert await numbers(store, "x") == [0, 1, 2, 3]
        assert await numbers(store, "x", after=1) == [2, 3]
        assert await numbers(store, "x", after=3) == []
        assert list(await store.events("a", "x", after=2)) == [event(3, is_last=True)]
        assert await store.events("b", "x", after=-1) == ()
        await store.delete("a", "x")
        assert await numbers(store, "x") == []

    async def test_events_wait_for_the_next_one(self, make: MakeStore) -> None:
        store = make()
        await store.put(entry("x"))
        await store.add_events("a", "x", [event(0)])
        assert await store.events("a", "x", after=0, wait_s=0.01) == ()
        waiting = asyncio.create_task(store.events("a", "x", after=0, wait_s=30))
        await asyncio.sleep(0)
        await store.add_events("a", "x", [event(1)])
        assert list(await waiting) == [event(1)]

    async def test_events_are_bounded(self, make: MakeStore) -> None:
        store = make(num_bytes=100, event_bytes=50)
        await store.put(entry("y", size=10))
        await store.put(entry("x", size=10))
        await store.add_events("a", "x", [event(number, size=20) for number in range(6)])
        assert await numbers(store, "x") == [4, 5]
        assert await found(store, "xy") == "xy"
        # An event that is over the bound alone is kept: the next one follows it.
        await store.add_events("a", "x", [event(6, size=70)])
        assert await numbers(store, "x") == [6]
        # They count as content.
        assert await found(store, "yx") == "yx"
        await store.add_events("a", "x", [event(7, size=1), event(8, size=49)])
        await store.put(entry("z", size=40))
        assert await found(store, "xyz") == "xz"
