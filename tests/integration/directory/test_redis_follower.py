"""A router's picture of the directory follows Redis, whatever happens to Redis or on the way."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.directory.base import BlockUpdate, RegistryChange
from shared.directory.index import block_keys
from shared.directory.redis.directory import RedisDirectory
from shared.directory.redis.follower import RedisFollower
from shared.directory.redis.store import RedisStore
from shared.directory.redis.url import open_client
from shared.engine.events import EngineStats
from shared.identity import WorkerId
from shared.kv.block_pool import BlockPool
from shared.worker import membership as membership_module
from shared.worker.gate import RequestGate
from shared.worker.membership import Membership
from tests.fakes.cache_traffic import PoolTraffic
from tests.fakes.redis_server import RedisServer
from tests.fakes.tcp_proxy import TcpProxy
from tests.suites.directory import DEVICE, HOST, A, B, hashes, record

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

LEASE_S = 1.0
log = structlog.get_logger(__name__)


async def until(condition: Callable[[], bool], *, timeout_s: float = 20.0) -> None:
    """Wait for it, but not for long."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 it is Redis that changes it
            await asyncio.sleep(0.005)


class Side:
    """Everything that runs beside one Redis; closed together."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()

    def store(self, url: str, *, timeout_s: float = 0.5) -> RedisStore:
        store = RedisStore(open_client(url, timeout_s=timeout_s))
        self._stack.push_async_callback(store.close)
        return store

    def follow(self, url: str) -> RedisFollower:
        follower = RedisFollower(self.store(url), poll_s=0.1)
        self.run(follower.run())
        return follower

    def run(self, work: Any) -> None:
        task = asyncio.create_task(work)

        async def end() -> None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        self._stack.push_async_callback(end)

    async def close(self) -> None:
        await self._stack.aclose()


@pytest.fixture
async def side() -> AsyncIterator[Side]:
    side = Side()
    yield side
    await side.close()


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
    await directory.deregister(A)
    await until(lambda: not follower.members.knows(A))
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
        while (await anext(events)).change is not RegistryChange.LEFT:
            pass
    assert time.monotonic() - registered_s >= LEASE_S
    assert (follower.index.num_entries, follower.index.workers) == (0, [])
    with redis_server.client() as client:
        assert not [key for key in client.keys("*") if b":a" in key]


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


class Engine:
    """The engine's cache, as membership sees it."""

    def __init__(self) -> None:
        self.pool = BlockPool(32)
        self.traffic = PoolTraffic(self.pool)

    def stats(self) -> EngineStats:
        return EngineStats()

    async def cache_snapshot(self, at_cut: Callable[[], None] | None = None) -> list[bytes]:
        if at_cut is not None:
            at_cut()
        return self.pool.hashes()


class Worker:
    """A membership with an engine whose cache changes all the time."""

    def __init__(self, side: Side, url: str) -> None:
        self.engine = Engine()
        directory = RedisDirectory(side.store(url))
        self._membership = Membership(
            record=record(A, num_blocks=32),
            registry=directory,
            blocks=directory,
            engine=self.engine,  # type: ignore[arg-type]
            gate=RequestGate("a"),
        )
        self._seed = 0
        side.run(self._membership.run())

    def work(self) -> None:
        for _ in range(3):
            self._seed += 1
            self.engine.traffic.act(self._seed)
        for change in self.engine.pool.changes.take():
            self._membership.note(change)


@pytest.mark.parametrize("fault", ["killed", "paused", "flushed", "cut"])
async def test_both_sides_recover_by_themselves(
    side: Side, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """I6: nobody leaves because of Redis, and the index is equal to the pool again."""
    monkeypatch.setattr(membership_module, "LEASE_S", LEASE_S)
    monkeypatch.setattr(membership_module, "HEARTBEAT_S", LEASE_S / 3)
    server = RedisServer(tmp_path)
    server.start()
    try:
        async with TcpProxy(server.port) as proxy:
            await _fault_and_recovery(side, server, proxy, fault)
            await side.close()
    finally:
        server.kill()


async def _fault_and_recovery(side: Side, server: RedisServer, proxy: TcpProxy, fault: str) -> None:
    url = f"redis://127.0.0.1:{proxy.port}/0"
    worker, follower = Worker(side, url), side.follow(url)
    left: list[WorkerId] = []
    follower.members.on_leave(left.append)

    def equal() -> bool:
        expected = set(block_keys(worker.engine.pool.hashes()))
        return bool(expected) and follower.index.blocks_of(A)[DEVICE] == expected

    for _ in range(20):
        worker.work()
        await asyncio.sleep(0.01)
    await until(equal)
    before = follower.index.blocks_of(A)
    if fault == "killed":
        server.kill()
    elif fault == "paused":
        server.pause()
    elif fault == "flushed":
        with server.client() as client:
            client.flushall()
    else:
        proxy.refusing = True
        await proxy.cut()
    if fault != "flushed":
        await until(lambda: not follower.connected)
        assert follower.index.blocks_of(A) == before
    for _ in range(30):
        worker.work()
        await asyncio.sleep(0.01)
    if fault == "paused":
        await asyncio.sleep(5)
        server.go_on()
    elif fault == "killed":
        await asyncio.sleep(2 * LEASE_S)
        server.start()
    elif fault == "cut":
        proxy.refusing = False
    back_s = time.monotonic()
    await until(lambda: follower.connected and equal())
    log.info("recovered", fault=fault, after_s=round(time.monotonic() - back_s, 2))
    assert left == []
    for _ in range(10):
        worker.work()
        await asyncio.sleep(0.01)
    await until(equal)
