"""The store of responses on a real Redis, and what Redis holds for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from services.router.openai.responses_api.stored.base import StoreLimits
from services.router.openai.responses_api.stored.redis.board import GRACE_S, LEASE_S, RedisBoard
from services.router.openai.responses_api.stored.redis.scripts import ResponseScripts
from services.router.openai.responses_api.stored.redis.store import RedisStore
from shared.directory.redis.url import close_client, open_client
from shared.errors import UnavailableError
from tests.suites.router.response_store import (
    Clock,
    ResponseStoreSuite,
    entry,
    event,
    found,
    numbers,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from tests.fakes.directory.redis_server import RedisServer
    from tests.suites.router.response_store import MakeStore

RUN = ("a", "x")
AGE_S = 60.0


@pytest.fixture
async def client(redis_server: RedisServer) -> AsyncIterator[Redis]:
    client = open_client(redis_server.url)
    yield client
    await close_client(client)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(client: Redis, clock: Clock) -> MakeStore:
    def make(
        *,
        entries: int = 100,
        num_bytes: int = 1000,
        age_s: float = AGE_S,
        event_bytes: int = 500,
    ) -> RedisStore:
        limits = StoreLimits(
            max_entries=entries,
            max_bytes=num_bytes,
            max_age_s=age_s,
            max_event_bytes=event_bytes,
        )
        return RedisStore(ResponseScripts(client, max_age_s=age_s, clock_s=clock), limits)

    return make


@pytest.fixture
def board(client: Redis, clock: Clock) -> RedisBoard:
    return RedisBoard(ResponseScripts(client, max_age_s=AGE_S, clock_s=clock))


class TestRedisStore(ResponseStoreSuite):
    pass


async def test_every_key_ends(
    make: MakeStore, board: RedisBoard, redis_server: RedisServer
) -> None:
    store = make()
    for name in "xyz":
        await store.put(entry(name))
        await store.add_events("a", name, [event(0), event(1)])
    await board.renew([RUN, ("a", "y")])
    await store.get("a", "x")
    await store.delete("a", "y")
    await board.is_alive(("a", "never"))
    with redis_server.client() as raw:
        left = {key: raw.pttl(key) for key in raw.keys("*")}
    kinds = {key.split(b":")[2] for key in left}
    assert {b"entry", b"events", b"ends", b"sizes", b"shelf", b"gone", b"run", b"clock"} <= kinds
    assert {key for key, ms in left.items() if not 0 < ms <= 600_000} == set()
    assert all(key.startswith(b"baton:responses:") for key in left)


async def test_nothing_is_left_of_what_was_removed(
    make: MakeStore, redis_server: RedisServer
) -> None:
    store = make()
    for name in "xyz":
        await store.put(entry(name, status="completed"))
        await store.add_events("a", name, [event(0, size=20)])
        await store.delete("a", name)
    with redis_server.client() as raw:
        assert raw.keys("*") == [b"baton:responses:clock"]


@pytest.mark.parametrize("lost", ["entry:a:x", "ends", "sizes", "shelf:a", "bytes", "total"])
async def test_books_that_redis_has_evicted_begin_anew(
    make: MakeStore, redis_server: RedisServer, lost: str
) -> None:
    store = make(entries=3, num_bytes=100)
    for name in "xyz":
        await store.put(entry(name, size=30))
    with redis_server.client() as raw:
        assert raw.delete(f"baton:responses:{lost}") == 1
    for name in "stuvw":
        assert await store.put(entry(name, size=30))
        await store.add_events("a", name, [event(0)])
    assert await found(store, "uvw") == "uvw"
    assert await numbers(store, "w") == [0]
    with redis_server.client() as raw:
        assert raw.zcard("baton:responses:ends") <= 3


async def test_a_run_is_its_routers_until_it_is_silent(board: RedisBoard, clock: Clock) -> None:
    assert list(await board.renew([RUN])) == []
    clock.now_s += LEASE_S
    assert await board.is_alive(RUN)
    # Missed; the first to miss it gives it time.
    clock.now_s += 1
    assert await board.is_alive(RUN)
    clock.now_s += GRACE_S
    assert await board.is_alive(RUN)
    clock.now_s += 1
    assert not await board.is_alive(RUN)
    # It was given up: its router has to end it.
    assert list(await board.renew([RUN])) == [RUN]


async def test_a_run_that_was_missed_is_back_with_its_next_beat(
    board: RedisBoard, clock: Clock
) -> None:
    await board.renew([RUN])
    clock.now_s += 10 * LEASE_S
    assert await board.is_alive(RUN)
    assert list(await board.renew([RUN])) == []
    clock.now_s += GRACE_S + 1
    assert await board.is_alive(RUN)
    clock.now_s += LEASE_S
    assert await board.is_alive(RUN)


async def test_a_run_is_ended_from_elsewhere(
    board: RedisBoard, make: MakeStore, clock: Clock
) -> None:
    assert not await board.cancel(RUN)
    await board.renew([RUN, ("a", "y")])
    assert await board.cancel(RUN)
    assert list(await board.renew([RUN, ("a", "y")])) == [RUN]
    await board.remove(RUN)
    assert not await board.cancel(RUN)
    store = make()
    await store.put(entry("y"))
    await store.delete("a", "y")
    assert list(await board.renew([("a", "y")])) == [("a", "y")]
    clock.now_s += LEASE_S + 1
    assert not await board.cancel(("a", "y"))


async def test_without_redis_there_is_an_error_for_clients(
    make: MakeStore, board: RedisBoard, client: Redis
) -> None:
    gone = open_client("redis://127.0.0.1:1/0")
    store = RedisStore(
        ResponseScripts(gone, max_age_s=60), StoreLimits(max_entries=1, max_bytes=1, max_age_s=1)
    )
    for call in (
        store.check(),
        store.put(entry("x")),
        store.get("a", "x"),
        store.events("a", "x", after=0, wait_s=1),
    ):
        with pytest.raises(UnavailableError, match="send store of false") as error:
            await call
        assert "127.0.0.1" not in str(error.value)
    await close_client(gone)
