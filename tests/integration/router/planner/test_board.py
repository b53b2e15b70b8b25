"""Planners of several routers meet in a real Redis."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from services.router.planner.redis.board import RedisBoard
from shared.directory.redis.url import close_client, open_client
from shared.errors import UnavailableError
from tests.fakes.servers.ports import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.fakes.directory.redis_server import RedisServer

LEASE_S = 1.0
#: No lease ends by itself, however busy the machine is.
LONG_S = 60.0


@pytest.fixture
async def board(redis_server: RedisServer) -> AsyncIterator[Callable[..., RedisBoard]]:
    """Makes the board of a router of this name."""
    client = open_client(redis_server.url)

    def make(name: str, lease_s: float = LONG_S) -> RedisBoard:
        return RedisBoard(client, model="a/b:c", name=name, lease_s=lease_s)

    yield make
    await close_client(client)


async def test_one_leads_all_report_and_another_takes_over(
    board: Callable[..., RedisBoard],
) -> None:
    one, other = board("one", LEASE_S), board("other", LONG_S)
    first, second = await one.exchange(b"1"), await other.exchange(b"2")
    assert (first.leads, second.leads) == (True, False)
    assert sorted(second.reports) == [b"1", b"2"]
    assert await one.decide(first.term, b"three")
    assert not await other.decide(first.term, b"four")
    assert (await other.exchange(b"2")).decision == b"three"
    # The first one is killed: nothing renews its lease, and its report fades.
    taken = second
    while not taken.leads:
        await asyncio.sleep(0.05)
        taken = await other.exchange(b"2")
    assert taken.term == first.term + 1
    assert list(taken.reports) == [b"2"]
    assert taken.decision == b"three"
    # It was only stopped, and comes back: what it still wants to do is refused.
    assert not await one.claim(first.term, cooldown_s=0.0)
    assert not await one.decide(first.term, b"five")
    assert not (await one.exchange(b"1")).leads


async def test_two_leaders_never_both_move(board: Callable[..., RedisBoard]) -> None:
    boards = [board(f"router-{i}") for i in range(8)]
    found = await asyncio.gather(*(each.exchange(b"") for each in boards))
    assert sum(each.leads for each in found) == 1
    claims = await asyncio.gather(
        *(each.claim(said.term, cooldown_s=60.0) for each in boards for said in found)
    )
    assert sum(claims) == 1
    leader = boards[[each.leads for each in found].index(True)]
    again = await leader.exchange(b"")
    assert again.moved_ago_s is not None
    assert again.moved_ago_s < 5
    # The next leader may not move within the cooldown of the last move either.
    await leader.resign()
    heir = boards[0] if leader is not boards[0] else boards[1]
    inherited = await heir.exchange(b"")
    assert inherited.leads
    assert not await heir.claim(inherited.term, cooldown_s=60.0)
    assert await heir.claim(inherited.term, cooldown_s=0.0)


async def test_an_exchange_renews_the_lease_and_who_resigns_leaves_nothing(
    redis_server: RedisServer,
) -> None:
    client = open_client(redis_server.url)
    try:
        one, other = (RedisBoard(client, model="m", name=n, lease_s=60.0) for n in ("one", "other"))
        assert (await one.exchange(b"1")).leads
        ends_ms = await client.pexpiretime("baton:planner:m:leader")
        await asyncio.sleep(0.01)
        assert len((await other.exchange(b"2")).reports) == 2
        assert await client.pexpiretime("baton:planner:m:leader") == ends_ms
        assert (await one.exchange(b"1")).leads
        assert await client.pexpiretime("baton:planner:m:leader") > ends_ms
        # It does not lead, so the lead stays; its report goes.
        await other.resign()
        assert not await client.exists("baton:planner:m:routers:other")
        kept = await one.exchange(b"1")
        assert (kept.leads, kept.term, list(kept.reports)) == (True, 1, [b"1"])
    finally:
        await close_client(client)


async def test_without_redis_nothing_is_decided() -> None:
    client = open_client(f"redis://127.0.0.1:{free_port()}/0")
    try:
        lonely = RedisBoard(client, model="m", name="one", lease_s=LEASE_S)
        with pytest.raises(UnavailableError):
            await lonely.exchange(b"")
        with pytest.raises(UnavailableError):
            await lonely.claim(1, cooldown_s=0.0)
    finally:
        await close_client(client)
