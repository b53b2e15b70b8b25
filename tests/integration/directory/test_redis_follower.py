"""A router's picture of the directory follows Redis, whatever happens on the way."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from shared.directory.base import BlockUpdate, RegistryChange, WorkerLoad
from shared.directory.index import block_keys
from shared.directory.redis.directory import RedisDirectory
from shared.directory.redis.follower import RedisFollower
from shared.directory.redis.store import RedisStore
from shared.directory.redis.url import open_client
from shared.identity import Role, WorkerId
from shared.kv.block_pool import BlockPool
from tests.fakes.directory.redis_side import Side, until
from tests.fakes.engine.cache_traffic import PoolTraffic
from tests.suites.directory import DEVICE, HOST, A, B, Clock, hashes, record

if TYPE_CHECKING:
    from shared.directory.redis.reading import DirectoryState
    from shared.kv.tier import BlockTier
    from tests.fakes.directory.redis_server import RedisServer

LEASE_S = 1.0
log = structlog.get_logger(__name__)


async def test_snapshot_deltas_and_ends_arrive(
    side: Side, store: RedisStore, redis_server: RedisServer
) -> None:
    directory = RedisDirectory(store)
    await directory.register(record(A), 60)
    await directory.replace(A, 1, {DEVICE: hashes("1"), HOST: hashes("2")})
    follower = side.follow(redis_server.url)
    index = follower.index
    await until(lambda: index.lookup(hashes("1", "2", "3")) == {A: 2})
    assert index.held_tiers(A, hashes("1", "2")) == [(DEVICE,), (HOST,)]
    await directory.publish(
        BlockUpdate(worker=A, sequence=2, stored=hashes("3"), removed=hashes("2"), tier=HOST)
    )
    await until(lambda: index.lookup(hashes("3")) == {A: 1})
    assert index.lookup(hashes("1", "2")) == {A: 1}
    assert follower.num_snapshots == 1
    await directory.replace(A, 3, {DEVICE: hashes("4")})
    await until(lambda: index.lookup(hashes("4")) == {A: 1})
    assert index.lookup(hashes("1")) == {}
    await directory.register(record(B), 60)
    await until(lambda: follower.members.knows(B))
    events = follower.members.watch()
    assert {(await anext(events)).record.worker for _ in range(2)} == {A, B}
    await directory.deregister(A)
    await until(lambda: not follower.members.knows(A))
    left = await anext(events)
    assert (left.change, left.record.worker, left.in_order) == (RegistryChange.LEFT, A, True)
    assert index.num_entries == 0
    newer = WorkerId("b", "2")
    await directory.register(record(newer), 60)
    await until(lambda: follower.members.knows(newer) and not follower.members.knows(B))


async def test_when_a_lease_ends_all_entries_of_the_worker_are_gone(
    side: Side, store: RedisStore, redis_server: RedisServer
) -> None:
    directory = RedisDirectory(store)
    follower = side.follow(redis_server.url)
    await until(lambda: follower.connected)
    await directory.register(record(A), LEASE_S)
    registered_s = time.monotonic()
    await directory.replace(A, 1, {DEVICE: hashes("1"), HOST: hashes("2")})
    await until(lambda: follower.index.lookup(hashes("1", "2")) == {A: 2})
    events = follower.members.watch()
    assert (await anext(events)).change is RegistryChange.JOINED
    async with asyncio.timeout(20):
        while (event := await anext(events)).change is not RegistryChange.LEFT:
            pass
    assert not event.in_order
    assert time.monotonic() - registered_s >= LEASE_S
    assert (follower.index.num_entries, follower.index.workers) == (0, [])
    with redis_server.client() as client:
        assert not [key for key in client.keys("*") if b":a" in key]


async def test_a_changed_preference_arrives_before_the_next_look(
    side: Side, store: RedisStore, redis_server: RedisServer
) -> None:
    directory = RedisDirectory(store)
    await directory.register(record(A), 60)
    await directory.heartbeat(A, WorkerLoad(preference=Role.DECODE))
    follower = RedisFollower(side.store(redis_server.url), poll_s=60)
    side.run(follower.run())
    await until(lambda: follower.members.knows(A))

    events = follower.members.watch()
    assert (await anext(events)).load.preference is Role.DECODE
    # A heartbeat that says nothing new waits for the next look.
    await directory.heartbeat(A, WorkerLoad(preference=Role.DECODE, num_running=1))
    await directory.heartbeat(A, WorkerLoad(preference=Role.PREFILL, num_running=2))
    async with asyncio.timeout(20):
        event = await anext(events)
    assert event.load == WorkerLoad(preference=Role.PREFILL, num_running=2)
    with redis_server.client() as client:
        kinds = [fields[b"k"] for _, fields in client.xrange("baton:stream")]
    assert kinds == [b"joined", b"joined"]


async def test_a_lost_entry_makes_it_read_that_worker_alone(
    side: Side, store: RedisStore, redis_server: RedisServer
) -> None:
    directory = RedisDirectory(store)
    for worker in (A, B):
        await directory.register(record(worker), 60)
        await directory.replace(worker, 1, {DEVICE: hashes("1")})
    follower = RedisFollower(side.store(redis_server.url))
    await follower.refresh()
    assert follower.num_snapshots == 2
    await directory.publish(BlockUpdate(worker=A, sequence=2, stored=hashes("2")))
    await directory.publish(BlockUpdate(worker=B, sequence=2, stored=hashes("2")))
    with redis_server.client() as client:
        lost, kept = client.xrevrange("baton:stream", count=2)[::-1]
        assert (lost[1][b"n"], kept[1][b"n"]) == (b"a", b"b")
        client.xdel("baton:stream", lost[0])
    await follower.refresh()
    assert follower.num_snapshots == 3
    assert follower.index.lookup(hashes("1", "2")) == {A: 2, B: 2}


async def test_leases_are_read_between_the_blocks_of_many_workers(
    side: Side,
    store: RedisStore,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = RedisDirectory(store)
    workers = [WorkerId(str(number), "1") for number in range(7)]
    for worker in workers:
        await directory.register(record(worker), 6000)
        await directory.replace(worker, 1, {DEVICE: hashes("1")})
    clock = Clock()
    followed = side.store(redis_server.url)
    follower = RedisFollower(followed, poll_s=60, clock=clock)
    read_state, read_snapshot = followed.state, followed.snapshot
    calls: list[str] = []

    async def state() -> DirectoryState:
        calls.append("state")
        return await read_state()

    async def snapshot(worker: WorkerId) -> tuple[int, dict[BlockTier, list[bytes]]] | None:
        """Take as long as a look at the leases may be late."""
        if not calls.count("snapshot"):
            for other in workers:
                await directory.publish(BlockUpdate(worker=other, sequence=2, stored=hashes("2")))
        calls.append("snapshot")
        found = await read_snapshot(worker)
        clock.now_s += 60
        return found

    monkeypatch.setattr(followed, "state", state)
    monkeypatch.setattr(followed, "snapshot", snapshot)
    with capture_logs() as logs:
        side.run(follower.run())
        await until(lambda: follower.index.lookup(hashes("1", "2")) == dict.fromkeys(workers, 2))
    assert {"snapshot_needed", "redis_lost"}.isdisjoint(entry["event"] for entry in logs)
    assert "snapshot" * 3 not in "".join(calls)
    assert calls.count("snapshot") == len(workers)


async def test_routers_agree(side: Side, store: RedisStore, redis_server: RedisServer) -> None:
    directory = RedisDirectory(store)
    followers = [side.follow(redis_server.url) for _ in range(3)]
    traffic = PoolTraffic(BlockPool(16))
    await directory.register(record(A, num_blocks=16), 60)
    sequence = 0
    for seed in range(200):
        traffic.act(seed)
        for change in traffic.pool.changes.take():
            sequence += 1
            await directory.publish(
                BlockUpdate(
                    worker=A, sequence=sequence, stored=change.stored,
                    removed=change.removed, cleared=change.cleared,
                )
            )  # fmt: skip
    late = side.follow(redis_server.url)
    expected = set(block_keys(traffic.pool.hashes()))
    for follower in [*followers, late]:
        index = follower.index
        await until(lambda index=index: index.sequence(A) == sequence)  # type: ignore[misc]
        assert index.blocks_of(A)[DEVICE] == expected


class LossyStore(RedisStore):
    """A store whose stream loses, repeats and swaps entries as it is told."""

    faults: list[str]

    async def tail(self, *args: Any, **kwargs: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
        entries = []
        for entry in await super().tail(*args, **kwargs):
            fault = self.faults.pop() if self.faults else "fine"
            if fault == "drop":
                continue
            if fault == "late" and entries:
                entries.insert(-1, entry)
            else:
                entries += [entry] * (1 + (fault == "twice"))
        return entries


@settings(max_examples=40)
@given(
    seeds=st.lists(st.integers(0, 2**32 - 1), min_size=5, max_size=40),
    faults=st.lists(
        st.sampled_from(["drop", "twice", "late", *["fine"] * 27]), min_size=80, max_size=80
    ),
    looks=st.integers(1, 10),
)
def test_whatever_is_lost_on_the_way_the_index_ends_equal_to_the_pool(
    common_redis: RedisServer, seeds: list[int], faults: list[str], looks: int
) -> None:
    """I13, with the real scripts and the real stream."""
    asyncio.run(_lossy_run(common_redis, seeds, list(faults), looks))


async def _lossy_run(server: RedisServer, seeds: list[int], faults: list[str], looks: int) -> None:
    with server.client() as client:
        client.flushall()
    traffic = PoolTraffic(BlockPool(12))
    writer = RedisStore(open_client(server.url), max_blocks_per_entry=3)
    reader = LossyStore(open_client(server.url))
    reader.faults = faults
    directory, follower = RedisDirectory(writer), RedisFollower(reader)
    await directory.register(record(A, num_blocks=12), 60)
    await follower.refresh()
    sequence = 0
    for number, seed in enumerate(seeds):
        traffic.act(seed)
        for change in traffic.pool.changes.take():
            sequence += 1
            await directory.publish(
                BlockUpdate(
                    worker=A, sequence=sequence, stored=change.stored,
                    removed=change.removed, cleared=change.cleared,
                )
            )  # fmt: skip
        if number % looks == 0:
            await follower.refresh()
    await follower.refresh()
    held = follower.index.blocks_of(A)[DEVICE]
    with server.client() as client:
        in_redis = {member[1:] for member in client.smembers("baton:blocks:a:1")}
    await writer.close()
    await reader.close()
    assert held == set(block_keys(traffic.pool.hashes()))
    assert in_redis == {value[:8] for value in traffic.pool.hashes()}


@pytest.mark.parametrize(
    "entry",
    [
        {"x": "y"},
        {"n": "a", "i": "1", "k": "delta", "s": "no number", "t": "0", "r": "", "a": ""},
        {"n": "a", "i": "1", "k": "delta", "s": "9" * 400, "t": "0", "r": "", "a": ""},
        {"n": "a", "i": "1", "k": "delta", "s": "2", "t": "7", "r": "", "a": ""},
        {"n": "a", "i": "1", "k": "delta", "s": "2", "t": "0", "r": "", "a": "odd"},
        {"n": b"\xff", "i": "1", "k": "left"},
        {"n": "a", "i": "1", "k": "reset"},
    ],
)
async def test_an_entry_that_makes_no_sense_is_counted_and_left_out(
    side: Side, store: RedisStore, redis_server: RedisServer, entry: dict[str, Any]
) -> None:
    """It used to end the follower, and with it the router."""
    directory = RedisDirectory(store)
    await directory.register(record(A), 60)
    follower = side.follow(redis_server.url)
    await until(lambda: follower.members.knows(A))
    with redis_server.client() as client:
        client.xadd("baton:stream", entry)
    await until(lambda: follower.num_malformed == 1)
    await directory.publish(BlockUpdate(worker=A, sequence=1, stored=hashes("1")))
    await until(lambda: follower.index.lookup(hashes("1")) == {A: 1})


@pytest.mark.parametrize(
    ("field", "value"),
    [("sequence", "x"), ("lease_ms", "9" * 400), ("lease_ms", ""), ("incarnation", b"\xff")],
)
async def test_a_lease_that_makes_no_sense_hides_its_worker_alone(
    side: Side, store: RedisStore, redis_server: RedisServer, field: str, value: str | bytes
) -> None:
    directory = RedisDirectory(store)
    for worker in (A, B):
        await directory.register(record(worker), 60)
    with redis_server.client() as client:
        client.hset(f"baton:worker:{A.name}", field, value)
    follower = side.follow(redis_server.url)
    await until(lambda: follower.members.knows(B))
    assert not follower.members.knows(A)


async def test_keys_of_another_kind_hide_what_they_hold_alone(
    side: Side, store: RedisStore, redis_server: RedisServer
) -> None:
    directory = RedisDirectory(store)
    for worker in (A, B):
        await directory.register(record(worker), 60)
        await directory.publish(BlockUpdate(worker=worker, sequence=1, stored=hashes("1")))
    with redis_server.client() as client:
        client.delete(f"baton:blocks:{A.name}:{A.incarnation}")
        client.set(f"baton:blocks:{A.name}:{A.incarnation}", "text")
        client.sadd(f"baton:blocks:{B.name}:{B.incarnation}", "x", b"7" * 9)
        client.sadd("baton:workers", "text")
        client.set("baton:worker:text", "text")
    follower = side.follow(redis_server.url)
    await until(lambda: follower.index.lookup(hashes("1")) == {B: 1})
    assert follower.members.knows(A)
