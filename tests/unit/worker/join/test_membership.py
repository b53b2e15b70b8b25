"""A worker stays in the directory, whatever happens to the directory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from shared.directory.base import BlockUpdate, WorkerLoad, WorkerRecord
from shared.directory.memory import MemoryRegistry
from shared.directory.memory_blocks import MemoryBlockDirectory
from shared.engine.engine_stats import EngineStats
from shared.errors import IncompatiblePeerError, UnavailableError
from shared.identity import Role, WorkerId
from shared.kv.change_log import CacheChange
from shared.kv.tier import BlockTier
from shared.worker.health.heart import Heart
from shared.worker.join import membership as module
from shared.worker.join.membership import Membership
from tests.fakes.worker.lease import LoopLease

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

WORKER = WorkerId("prefill-0", "one")
RECORD = WorkerRecord(
    worker=WORKER,
    role=Role.PREFILL,
    address="127.0.0.1:1",
    model="tiny",
    namespace="n",
    block_size=16,
    num_blocks=8,
    max_model_len=128,
)
A, B, C = (bytes([i]) * 32 for i in range(3))


class Cache:
    """The engine's cache, as membership sees it."""

    def __init__(self) -> None:
        self.hashes: list[bytes] = []

    def stats(self) -> EngineStats:
        return EngineStats(num_running=2, num_free_blocks=5)

    async def tier_snapshots(
        self, at_cut: Callable[[], None] | None = None
    ) -> dict[BlockTier, list[bytes]]:
        if at_cut is not None:
            at_cut()
        return {BlockTier.DEVICE: list(self.hashes)}


class Flaky(MemoryRegistry):
    """A registry that can be away."""

    away = False
    refusing = False
    num_beats = 0

    async def register(self, record: WorkerRecord, lease_s: float) -> None:
        if self.away:
            raise UnavailableError("away")
        await super().register(record, lease_s)

    async def heartbeat(self, worker: WorkerId, load: WorkerLoad) -> None:
        self.num_beats += 1
        if self.refusing:
            raise IncompatiblePeerError("block_hash", ours="1", theirs="2")
        if self.away:
            raise UnavailableError("away")
        await super().heartbeat(worker, load)


class Lossy(MemoryBlockDirectory):
    """A directory on the way to which updates get lost."""

    num_to_lose = 0
    is_full = False
    num_snapshots = 0

    async def replace(
        self, worker: WorkerId, sequence: int, hashes: Mapping[BlockTier, Sequence[bytes]]
    ) -> None:
        self.num_snapshots += 1
        if self.is_full:
            raise UnavailableError("full")
        await super().replace(worker, sequence, hashes)

    async def publish(self, update: BlockUpdate) -> None:
        if self.num_to_lose:
            self.num_to_lose -= 1
            return
        await super().publish(update)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for it, but not for long."""
    async with asyncio.timeout(5):
        while not await condition():  # noqa: ASYNC110 the directory has no event to wait for
            await asyncio.sleep(0.005)


class Setup:
    """A running membership and the directory that it reports to."""

    task: asyncio.Task[None]

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.cache = Cache()
        self.registry = Flaky()
        self.blocks = Lossy(self.registry)
        self.membership = Membership(
            record=RECORD,
            registry=self.registry,
            blocks=self.blocks,
            engine=self.cache,  # type: ignore[arg-type]
        )
        self.num_registered = 0
        self.membership.on_registered = self._registered
        self.heart = Heart(
            lambda: LoopLease(self.registry, WORKER, loop),
            load=lambda: WorkerLoad(num_running=self.cache.stats().num_running),
            period_s=0.01,
            on_beat=self.membership.on_beat,
        )

    def _registered(self) -> None:
        self.num_registered += 1

    async def has_lost(self) -> bool:
        """Whether every update that was to be lost has been."""
        return not self.blocks.num_to_lose

    async def until_held(self, *hashes: bytes) -> None:
        """Wait until the directory says that the worker holds this prefix, and no more."""

        async def holds() -> bool:
            return (await self.blocks.lookup([A, B, C])).get(WORKER, 0) == len(hashes)

        await until(holds)


@pytest.fixture
async def setup(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Setup]:
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.01)
    made = Setup()
    made.cache.hashes = [A]
    made.task = asyncio.create_task(made.membership.run())
    made.heart.start()
    yield made
    await made.heart.stop()
    made.task.cancel()
    await asyncio.gather(made.task, return_exceptions=True)


async def test_a_block_is_held_as_long_as_any_tier_holds_it(setup: Setup) -> None:
    await setup.until_held(A)
    setup.membership.note(CacheChange(stored=(A, B), tier=BlockTier.HOST))
    await setup.until_held(A, B)
    setup.membership.note(CacheChange(removed=(A,)))
    setup.membership.note(CacheChange(stored=(C,)))
    await setup.until_held(A, B, C)
    setup.membership.note(CacheChange(removed=(B,), tier=BlockTier.HOST))
    await setup.until_held(A)


async def test_the_cache_is_published_with_its_changes(setup: Setup) -> None:
    await setup.until_held(A)
    setup.membership.note(CacheChange(stored=(B, C)))
    await setup.until_held(A, B, C)
    setup.membership.note(CacheChange(removed=(C,)))
    await setup.until_held(A, B)


async def test_the_load_is_reported(setup: Setup) -> None:
    await setup.until_held(A)

    async def knows_load() -> bool:
        return (await setup.registry.workers())[0].load.num_running == 2

    await until(knows_load)


async def test_a_directory_that_forgot_the_worker_learns_all_again(setup: Setup) -> None:
    await setup.until_held(A)
    assert setup.num_registered == 1
    setup.cache.hashes = [A, B, C]
    await setup.registry.deregister(WORKER)
    await setup.until_held(A, B, C)
    # What the worker says with a heartbeat is told at once, too.
    assert setup.num_registered == 2


async def test_a_directory_that_was_away_learns_all_again(setup: Setup) -> None:
    await setup.until_held(A)
    setup.registry.away = True
    setup.membership.note(CacheChange(stored=(B,)))
    await asyncio.sleep(0.05)
    setup.cache.hashes = [A, B]
    await setup.registry.deregister(WORKER)
    setup.registry.away = False
    await setup.until_held(A, B)


async def test_a_directory_that_takes_no_blocks_is_asked_less_and_less(setup: Setup) -> None:
    """As a full one: it goes on to take heartbeats, so the worker is there."""
    await setup.until_held(A)
    setup.blocks.is_full = True
    setup.blocks.num_snapshots = 0
    with capture_logs() as lines:
        await setup.registry.deregister(WORKER)
        beats_before = setup.registry.num_beats

        async def has_beaten() -> bool:
            return setup.registry.num_beats >= beats_before + 60

        await until(has_beaten)
    assert 2 <= setup.blocks.num_snapshots <= 12
    assert [line["event"] for line in lines].count("blocks_not_told") == 1
    assert "directory_back" not in [line["event"] for line in lines]
    # A directory that begins anew is told at once, however long the next wait would be.
    setup.blocks.is_full = False
    await setup.registry.deregister(WORKER)
    await setup.until_held(A)


async def test_a_lost_update_is_noticed_and_healed(setup: Setup) -> None:
    await setup.until_held(A)
    setup.blocks.num_to_lose = 1
    setup.membership.note(CacheChange(stored=(B,)))
    await until(setup.has_lost)
    setup.cache.hashes = [A, B, C]
    setup.membership.note(CacheChange(stored=(C,)))
    await setup.until_held(A, B, C)


async def test_changes_that_wait_are_told_together(setup: Setup) -> None:
    await setup.until_held(A)
    before = setup.blocks.index.sequence(WORKER)
    assert before is not None
    for block_hash in (B, C):
        setup.membership.note(CacheChange(stored=(block_hash,)))
    await setup.until_held(A, B, C)
    assert setup.blocks.index.sequence(WORKER) == before + 1


async def test_a_refusal_ends_it(setup: Setup) -> None:
    await setup.until_held(A)
    setup.registry.refusing = True
    (error,) = await asyncio.gather(setup.task, return_exceptions=True)
    assert isinstance(error, BaseExceptionGroup)
    assert error.subgroup(IncompatiblePeerError)


async def test_leaving_is_immediate(setup: Setup) -> None:
    await setup.until_held(A)
    await setup.membership.leave()
    assert await setup.registry.workers() == []
