"""A worker as Redis sees it: its membership and its heart, with a cache that the test changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.directory.base import WorkerLoad
from shared.directory.lease import RedisLease
from shared.directory.redis.directory import RedisDirectory
from shared.directory.redis.store import RedisStore
from shared.directory.redis.url import open_client
from shared.engine.engine_stats import EngineStats
from shared.kv.block_pool import BlockPool
from shared.kv.tier import BlockTier
from shared.worker.health.heart import Heart
from shared.worker.join.membership import Membership
from tests.fakes.engine.cache_traffic import PoolTraffic
from tests.suites.directory import A, record

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.directory.redis.seal import RecordSeals
    from shared.identity import WorkerId
    from tests.fakes.directory.redis_side import Side


class Engine:
    """The engine's cache, as membership sees it."""

    def __init__(self) -> None:
        self.pool = BlockPool(32)
        self.traffic = PoolTraffic(self.pool)

    def stats(self) -> EngineStats:
        return EngineStats()

    async def tier_snapshots(
        self, at_cut: Callable[[], None] | None = None
    ) -> dict[BlockTier, list[bytes]]:
        if at_cut is not None:
            at_cut()
        return {BlockTier.DEVICE: self.pool.hashes()}


class RedisWorker:
    """A membership with an engine whose cache changes all the time."""

    def __init__(
        self,
        side: Side,
        url: str,
        worker: WorkerId = A,
        *,
        lease_s: float,
        seals: RecordSeals | None = None,
    ) -> None:
        self.engine = Engine()
        directory = RedisDirectory(side.store(url), seals=seals)
        self._membership = Membership(
            record=record(worker, num_blocks=32),
            registry=directory,
            blocks=directory,
            engine=self.engine,  # type: ignore[arg-type]
        )
        heart = Heart(
            lambda: RedisLease(worker, lambda: RedisStore(open_client(url)), directory),
            load=WorkerLoad,
            period_s=lease_s / 3,
            on_beat=self._membership.on_beat,
        )
        heart.start()
        side.at_end(heart.stop)
        self._seed = 0
        side.run(self._membership.run())

    def work(self) -> None:
        for _ in range(3):
            self._seed += 1
            self.engine.traffic.act(self._seed)
        for change in self.engine.pool.changes.take():
            self._membership.note(change)
