"""Loads prefixes from the lower tiers into blocks of the pool."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from shared.engine.offload.block_file import CorruptBlockError
from shared.engine.offload.jobs import LoadJob
from shared.kv.offload.base import StorePlan
from shared.kv.tier import BlockTier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shared.engine.offload.tier_set import TierSet
    from shared.kv.offload.load_rule import LoadRule


class PrefixLoads:
    """Finds prefixes in the tiers, and tracks blocks that are being loaded."""

    def __init__(self, tiers: TierSet, rule: LoadRule) -> None:
        self._tiers = tiers
        self._rule = rule
        #: Blocks being loaded from disk: other sequences that need them wait.
        self._promoting: set[bytes] = set()
        #: Limit of those: they go through the host tier, and must leave room there for others.
        self._max_from_disk = max(1, tiers.host.capacity // 2)

    def find(self, keys: Iterable[bytes]) -> list[BlockTier] | None:
        """Return the tier of each leading block that can be loaded; None: not yet known."""
        host, disk = self._tiers.host, self._tiers.disk
        tiers: list[BlockTier] = []
        room = self._max_from_disk
        for key in keys:
            if host.is_ready(key):
                tiers.append(BlockTier.HOST)
            elif key in self._promoting:
                return None
            elif disk is not None and room and key not in host and disk.has(key):
                room -= 1
                tiers.append(BlockTier.DISK)
            else:
                break
        return tiers

    def num_worth(self, keys: Iterable[bytes]) -> int | None:
        """Return how many leading blocks load faster than they compute; None as in `find`."""
        tiers = self.find(keys)
        return None if tiers is None else self._rule.num_worth(tiers, time.monotonic())

    def load(
        self, keys: Sequence[bytes], blocks: Sequence[int], done: Callable[[int], None]
    ) -> int:
        """Fill `blocks`, which are in use, with `keys`, which `find` has found.

        Returns the number of blocks being loaded. If it is not 0, `done` is called in a later
        `poll` with the number of leading blocks that arrived and were verified; until then the
        blocks stay in use.
        """
        tiers = (self.find(keys) or [])[: len(keys)]
        from_disk = [key for key, tier in zip(keys, tiers, strict=False) if tier is BlockTier.DISK]
        from_host = [key for key, tier in zip(keys, tiers, strict=False) if tier is BlockTier.HOST]
        slots = dict(zip(from_host, self._tiers.host.prepare_load(from_host), strict=True))
        plan = self._tiers.host.prepare_store(from_disk) if from_disk else StorePlan()
        if plan is None:
            # No room to go through the host tier: load the blocks before the first one on disk.
            num = tiers.index(BlockTier.DISK)
            self._tiers.host.complete_load(from_host[num:])
            tiers, plan, from_disk = tiers[:num], StorePlan(), []
        if not tiers:
            return 0
        slots |= dict(plan.stores)
        self._promoting.update(from_disk)
        if self._tiers.disk is not None:
            self._tiers.disk.manager.prepare_load(from_disk)
        keys, blocks = tuple(keys[: len(tiers)]), tuple(blocks[: len(tiers)])
        job = LoadJob(
            keys=keys,
            tiers=tuple(tiers),
            slots=tuple(slots[key] for key in keys),
            blocks=blocks,
            done=done,
            spills=self._tiers.make_room(plan),
        )
        self._tiers.submit(job)
        return len(tiers)

    def end(self, job: LoadJob) -> None:
        """Process a load that has ended."""
        host, disk = self._tiers.host, self._tiers.disk
        from_disk = job.keys_in(BlockTier.DISK)
        unread = from_disk[len(job.read) :]
        self._promoting.difference_update(from_disk)
        host.complete_load(job.keys_in(BlockTier.HOST))
        host.complete_store(from_disk[: len(job.read)], success=True)
        host.complete_store(unread, success=False)
        if disk is not None and from_disk:
            self._tiers.remove(disk.loaded(job, from_disk))
        num = job.num_loaded
        if num < len(job.keys) and job.keys[num] not in unread:
            # Its bytes in host memory differ from those stored, or could not be copied.
            self._tiers.counters.failed_loads += 1
            self._tiers.counters.corrupt_blocks += isinstance(job.error, CorruptBlockError)
            host.forget(job.keys[num])
        self._count_load(job)
        job.done(num)
        self._tiers.take_back(job)

    def _count_load(self, job: LoadJob) -> None:
        now_s, tiers = time.monotonic(), Counter(job.tiers[: job.num_loaded])
        self._tiers.counters.hits += tiers[BlockTier.HOST]
        self._tiers.counters.loads += job.num_loaded
        self._tiers.counters.load_seconds += job.seconds.get(BlockTier.HOST, 0.0)
        if job.num_loaded:
            self._rule.note_loaded(
                BlockTier.HOST, job.num_loaded, job.seconds[BlockTier.HOST], now_s
            )
            self._rule.note_waited(now_s - job.finished_s, now_s)
        if self._tiers.disk is not None and BlockTier.DISK in job.seconds:
            seconds = job.seconds[BlockTier.DISK]
            self._tiers.disk.counters.hits += tiers[BlockTier.DISK]
            self._tiers.disk.counters.load_seconds += seconds
            self._rule.note_loaded(BlockTier.DISK, max(1, len(job.read)), seconds, now_s)
