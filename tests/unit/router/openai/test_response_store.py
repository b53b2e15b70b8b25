"""A store of responses: what it finds, and what it removes."""

from __future__ import annotations

from services.router.openai.responses_api.stored.base import StoredResponse
from services.router.openai.responses_api.stored.memory import MemoryStore, StoreLimits


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def store_of(
    *, entries: int = 100, num_bytes: int = 1000, age_s: float = 60, clock: Clock | None = None
) -> MemoryStore:
    limits = StoreLimits(max_entries=entries, max_bytes=num_bytes, max_age_s=age_s)
    return MemoryStore(limits, clock_s=clock or Clock())


def entry(name: str, tenant: str = "a", *, size: int = 10, status: str = "done") -> StoredResponse:
    return StoredResponse(
        response_id=name,
        tenant=tenant,
        status=status,
        background=False,
        items=b"i" * (size // 2),
        response=b"r" * (size - size // 2),
    )


async def found(store: MemoryStore, names: str, tenant: str = "a") -> str:
    return "".join([name for name in names if await store.get(tenant, name) is not None])


async def test_an_entry_is_its_tenants() -> None:
    store = store_of()
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


async def test_the_least_recently_used_goes_first() -> None:
    store = store_of(entries=3)
    for name in "wxyz":
        assert await store.put(entry(name))
    assert await found(store, "wxyz") == "xyz"
    await store.get("a", "x")
    await store.put(entry("v"))
    assert await found(store, "xyzv") == "xzv"


async def test_an_entry_that_is_written_again_counts_once() -> None:
    store = store_of(num_bytes=100)
    for _ in range(5):
        assert await store.put(entry("x", size=60))
    assert await store.put(entry("y", size=40))
    assert await found(store, "xy") == "xy"
    assert await store.put(entry("z", size=1))
    assert await found(store, "xyz") == "yz"


async def test_what_does_not_fit_is_not_kept() -> None:
    store = store_of(num_bytes=100)
    await store.put(entry("x", size=20))
    assert not await store.put(entry("y", size=101))
    assert not await store.put(entry("x", size=101))
    assert await found(store, "xy") == ""
    assert await store.put(entry("z", size=100))


async def test_a_tenant_that_stores_much_displaces_its_own() -> None:
    store = store_of(entries=10, num_bytes=100)
    await store.put(entry("x", "quiet", size=30))
    for name in "abcdefgh":
        assert await store.put(entry(name, "loud", size=20))
    assert await found(store, "x", "quiet") == "x"
    assert await found(store, "abcdefgh", "loud") == "fgh"


async def test_entries_grow_old() -> None:
    clock = Clock()
    store = store_of(clock=clock)
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
