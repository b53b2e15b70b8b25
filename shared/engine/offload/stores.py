"""Copies the pool's final blocks to the host tier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.engine.offload.jobs import StoreJob

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.engine.offload.tier_set import TierSet

#: Blocks per copy: few enough for loads to start in between.
_BATCH_BLOCKS = 16
_MAX_STORING_BLOCKS = 128


class HostStores:
    """Final blocks in order, and those being copied."""

    def __init__(self, tiers: TierSet) -> None:
        self._tiers = tiers
        #: Limit of copies in progress: neither the pool nor the host tier is short of blocks by
        #: them.
        self._max_storing = max(
            1, min(tiers.pool.num_blocks // 8, tiers.host.capacity // 2, _MAX_STORING_BLOCKS)
        )
        #: Copy not begun. A dict for its order.
        self._candidates: dict[bytes, None] = {}
        #: Blocks of the pool that are being copied.
        self.num_storing = 0

    @property
    def num_waiting(self) -> int:
        """The number of blocks whose copy has not begun."""
        return len(self._candidates)

    def note_final(self, keys: Iterable[bytes]) -> None:
        """Add blocks of the pool that can be stored from now on."""
        self._candidates.update(dict.fromkeys(keys))

    def forget(self) -> None:
        """Drop the added blocks whose copy has not begun."""
        self._candidates.clear()

    def start(self) -> None:
        """Submit as many blocks as may be in progress."""
        while self._candidates and self.num_storing < self._max_storing:
            keys, blocks = self._next_batch()
            plan = self._tiers.host.prepare_store(keys)
            if plan is None:
                self._tiers.counters.dropped_stores += len(keys)
            elif keys:
                self.num_storing += len(keys)
                self._tiers.submit(
                    StoreJob(
                        keys=plan.keys,
                        blocks=tuple(blocks),
                        slots=plan.slots,
                        spills=self._tiers.make_room(plan),
                    )
                )

    def end(self, job: StoreJob) -> None:
        """Process a copy that has ended."""
        self.num_storing -= len(job.keys)
        self._tiers.take_back(job)
        self._tiers.host.complete_store(job.keys, success=job.error is None)
        if job.error is None:
            self._tiers.counters.stores += len(job.keys)
        else:
            self._tiers.counters.failed_stores += len(job.keys)
        self._tiers.counters.store_seconds += job.seconds

    def _next_batch(self) -> tuple[list[bytes], list[int]]:
        """Return candidates that are still in the pool, and not in the host tier."""
        keys: list[bytes] = []
        blocks: list[int] = []
        room = min(_BATCH_BLOCKS, self._max_storing - self.num_storing)
        while self._candidates and len(keys) < room:
            key = next(iter(self._candidates))
            del self._candidates[key]
            block = self._tiers.pool.find(key)
            if block is not None and key not in self._tiers.host:
                keys.append(key)
                blocks.append(block)
        return keys, blocks
