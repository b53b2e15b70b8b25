"""What every store of responses must do. Subclasses provide `make`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from services.router.openai.responses_api.stored.base import StoredResponse

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
        self, *, entries: int = 100, num_bytes: int = 1000, age_s: float = 60
    ) -> ResponseStore:
        """Make it."""


def entry(name: str, tenant: str = "a", *, size: int = 10, status: str = "done") -> StoredResponse:
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


class ResponseStoreSuite:
    async def test_an_entry_is_its_tenants(self, make: MakeStore) -> None:
        store = make()
        assert await store.put(entry("x"))
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
