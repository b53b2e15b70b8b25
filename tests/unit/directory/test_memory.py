from __future__ import annotations

import asyncio
import random
from contextlib import aclosing

import pytest

from shared.directory import index as index_module
from shared.directory.base import BlockUpdate, RegistryChange, WorkerLoad
from shared.directory.memory import MemoryRegistry
from shared.directory.memory_blocks import MemoryBlockDirectory
from shared.errors import OverloadedError, UnknownIncarnationError
from shared.identity import WorkerId
from tests.suites.directory import DEVICE, A, B, Clock, Cluster, DirectorySuite, hashes, record


class TestMemoryDirectory(DirectorySuite):
    @pytest.fixture
    def cluster(self) -> Cluster:
        clock = Clock()
        registry = MemoryRegistry(clock=clock)

        def advance(seconds: float) -> None:
            clock.now_s += seconds
            registry.expire()

        return Cluster(registry, MemoryBlockDirectory(registry), advance)


async def test_a_watcher_notices_the_end_of_a_lease_by_itself() -> None:
    registry = MemoryRegistry()
    await registry.register(record(A), 0.05)
    async with aclosing(registry.watch()) as events:
        assert (await anext(events)).change is RegistryChange.JOINED
        async with asyncio.timeout(5):
            event = await anext(events)
        assert (event.change, event.in_order) == (RegistryChange.LEFT, False)
        await registry.register(record(A), 60)
        await anext(events)
        await registry.deregister(A)
        event = await anext(events)
        assert (event.change, event.in_order) == (RegistryChange.LEFT, True)


async def test_a_watcher_that_does_not_read_misses_no_join_and_stays_small() -> None:
    registry = MemoryRegistry(clock=Clock())
    async with aclosing(registry.watch()) as events:
        await registry.register(record(A), 10)
        assert (await anext(events)).change is RegistryChange.JOINED
        await registry.register(record(B), 10)
        for running in range(1000):
            await registry.heartbeat(A, WorkerLoad(num_running=running))
            await registry.heartbeat(B, WorkerLoad(num_running=running))
        await registry.deregister(B)
        seen = [await anext(events) for _ in range(3)]
    assert [(e.change, e.record.worker, e.load.num_running) for e in seen] == [
        (RegistryChange.JOINED, B, 999),
        (RegistryChange.UPDATED, A, 999),
        (RegistryChange.LEFT, B, 999),
    ]


async def test_the_number_of_workers_is_bounded() -> None:
    registry = MemoryRegistry(clock=Clock(), max_workers=1)
    await registry.register(record(A), 10)
    await registry.register(record(WorkerId("a", "2")), 10)
    with pytest.raises(OverloadedError):
        await registry.register(record(B), 10)


async def test_nothing_is_left_of_workers_that_are_gone() -> None:
    registry = MemoryRegistry(clock=Clock())
    blocks = MemoryBlockDirectory(registry)
    for incarnation in range(20):
        worker = WorkerId("a", str(incarnation))
        await registry.register(record(worker), 10)
        held = hashes(*(f"{incarnation}-{i}" for i in range(8)))
        await blocks.replace(worker, 1, {DEVICE: held})
        assert blocks.num_entries == 8
    await registry.deregister(worker)
    assert blocks.num_entries == 0


async def test_random_updates_agree_with_sets() -> None:
    rng = random.Random(7)
    registry = MemoryRegistry(clock=Clock())
    blocks = MemoryBlockDirectory(registry)
    workers = [WorkerId(name, "1") for name in "abcde"]
    held: dict[WorkerId, set[bytes]] = {worker: set() for worker in workers}
    chain = hashes(*map(str, range(12)))
    for worker in workers:
        await registry.register(record(worker, num_blocks=12), 10)
    for sequence in range(1, 60):
        for worker in workers:
            stored = tuple(rng.sample(chain, 2))
            removed = tuple(h for h in rng.sample(chain, 3) if h not in stored)
            held[worker] = (held[worker] - set(removed)) | set(stored)
            await blocks.publish(
                BlockUpdate(worker=worker, sequence=sequence, stored=stored, removed=removed)
            )
        expected = {}
        for worker in workers:
            leading = next((i for i, h in enumerate(chain) if h not in held[worker]), len(chain))
            if leading:
                expected[worker] = leading
        assert await blocks.lookup(chain) == expected


async def test_other_work_goes_on_in_a_large_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "STEP_BLOCKS", 4)
    registry = MemoryRegistry(clock=Clock())
    blocks = MemoryBlockDirectory(registry)
    chain = hashes(*map(str, range(40)))
    for worker in (A, B):
        await registry.register(record(worker, num_blocks=40), 10)
    first = asyncio.create_task(blocks.replace(A, 1, {DEVICE: chain}))
    second = asyncio.create_task(blocks.replace(B, 1, {DEVICE: chain}))
    # It waits for its worker's snapshot.
    update = asyncio.create_task(
        blocks.publish(BlockUpdate(worker=A, sequence=2, removed=chain[9:]))
    )
    num_steps = 0
    while not first.done():
        assert not second.done()
        num_steps += 1
        await asyncio.sleep(0)
    assert num_steps >= 20
    assert B not in await blocks.lookup(chain)
    await asyncio.gather(second, update)
    assert await blocks.lookup(chain) == {A: 9, B: 40}


async def test_a_worker_that_leaves_in_its_snapshot_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index_module, "STEP_BLOCKS", 4)
    registry = MemoryRegistry(clock=Clock())
    blocks = MemoryBlockDirectory(registry)
    chain = hashes(*map(str, range(40)))
    await registry.register(record(A, num_blocks=40), 10)
    snapshot = asyncio.create_task(blocks.replace(A, 1, {DEVICE: chain}))
    update = asyncio.create_task(blocks.publish(BlockUpdate(worker=A, sequence=2, stored=chain)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await registry.deregister(A)
    for call in (snapshot, update):
        with pytest.raises(UnknownIncarnationError):
            await call
    for _ in range(10):
        await blocks.lookup(chain)
    assert (blocks.num_entries, blocks.index.workers) == (0, [])
