"""Loads prefixes from the lower tiers into blocks of the pool."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from shared.engine.offload.disk.block_file import CorruptBlockError
from shared.engine.offload.jobs import LoadJob
from shared.engine.offload.load_plan import LoadedBlock, LoadPlan
from shared.kv.group_rules import longest_prefix
from shared.kv.identity import block_key
from shared.kv.offload.base import StorePlan
from shared.kv.tier import BlockTier

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shared.engine.offload.tier_set import TierSet
    from shared.kv.group_rules import GroupRule
    from shared.kv.offload.load_rule import LoadRule


class PrefixLoads:
    """Finds prefixes in the tiers, and tracks blocks that are being loaded."""

    def __init__(
        self, tiers: TierSet, rule: LoadRule, groups: Sequence[GroupRule], *, block_size: int
    ) -> None:
        """Make it. `groups`: the rules of the layout's groups."""
        self._tiers = tiers
        self._rule = rule
        self._groups = tuple(groups)
        self._has_windows = any(rule.reach is not None for rule in groups)
        self._block_size = block_size
        #: Blocks being loaded from disk: other sequences that need them wait.
        self._promoting: set[bytes] = set()
        #: Limit of those: they go through the host tier, and must leave room there for others.
        self._max_from_disk = max(1, tiers.host.capacity // 2)

    def find(self, block_hashes: Sequence[bytes], *, first_block: int = 0) -> LoadPlan | None:
        """Plan to load the longest prefix that the tiers have; None: not yet known.

        `block_hashes` are those behind `first_block` blocks, which are in the pool as far as the
        computation behind them needs them.
        """
        lookups = [_Lookup(self, block_hashes, first_block, g) for g in range(len(self._groups))]
        asked = [lookup.is_there for lookup in lookups]
        most = first_block + len(block_hashes)
        while True:
            end = longest_prefix(self._groups, asked, first_block, most)
            if any(lookup.is_promoting for lookup in lookups):
                return None
            starts = [rule.first_needed(end * self._block_size) for rule in self._groups]
            blocks = [
                lookups[group].block(place)
                for place in range(first_block, end)
                for group, start in enumerate(starts)
                if place >= start
            ]
            on_disk = [block.place for block in blocks if block.tier is BlockTier.DISK]
            if len(on_disk) <= self._max_from_disk:
                num = end - first_block
                return LoadPlan(first_block, num, tuple(blocks), self._has_windows)
            most = on_disk[self._max_from_disk]

    def worth(self, block_hashes: Sequence[bytes], *, first_block: int) -> LoadPlan | None:
        """Do as `find`, as far as loading takes less time than computing."""
        plan = self.find(block_hashes, first_block=first_block)
        if plan is None or not plan.num_blocks:
            return plan
        num = self._rule.num_worth(plan.tiers(), time.monotonic(), is_whole=plan.is_whole)
        return plan.shortened(num)

    def tier_of(self, key: bytes) -> BlockTier | None:
        """Return the tier that a block can be loaded from; None if there is none now."""
        host, disk = self._tiers.host, self._tiers.disk
        if host.is_ready(key):
            return BlockTier.HOST
        if disk is not None and key not in host and disk.has(key):
            return BlockTier.DISK
        return None

    def is_promoting(self, key: bytes) -> bool:
        """Return whether the block is on its way from disk."""
        return key in self._promoting

    def load(self, plan: LoadPlan, blocks: Sequence[int], done: Callable[[int], None]) -> bool:
        """Fill `blocks`, which are in use, as planned by `find`; return whether that has begun.

        If it has, `done` is called in a later `poll` with the number of blocks of tokens by which
        the prefix has grown: their blocks arrived and were verified. Until then the blocks stay in
        use.
        """
        by_tier = {tier: [b.key for b in plan.blocks if b.tier is tier] for tier in BlockTier}
        from_disk, from_host = by_tier[BlockTier.DISK], by_tier[BlockTier.HOST]
        slots = dict(zip(from_host, self._tiers.host.prepare_load(from_host), strict=True))
        host_plan = self._tiers.host.prepare_store(from_disk) if from_disk else StorePlan()
        if host_plan is None:
            # No room to go through the host tier: load the blocks before the first one on disk.
            self._tiers.host.complete_load(from_host)
            first = next(block.place for block in plan.blocks if block.tier is BlockTier.DISK)
            plan = plan.shortened(first - plan.first_block)
            return self.load(plan, blocks[: len(plan.blocks)], done)
        if not plan.num_blocks:
            return False
        slots |= dict(host_plan.stores)
        self._promoting.update(from_disk)
        if self._tiers.disk is not None:
            self._tiers.disk.manager.prepare_load(from_disk)
        job = LoadJob(
            keys=plan.keys,
            tiers=tuple(block.tier for block in plan.blocks),
            slots=tuple(slots[key] for key in plan.keys),
            blocks=tuple(blocks),
            done=lambda num: done(plan.num_grown(num)),
            spills=self._tiers.make_room(host_plan),
        )
        self._tiers.submit(job)
        return True

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


class _Lookup:
    """The loadable blocks of one group by their place; each is looked up once."""

    def __init__(
        self, loads: PrefixLoads, block_hashes: Sequence[bytes], first_block: int, group: int
    ) -> None:
        self._loads = loads
        self._hashes = block_hashes
        self._first = first_block
        self._group = group
        self._found: dict[int, LoadedBlock] = {}
        self.is_promoting = False

    def is_there(self, place: int) -> bool:
        if place in self._found:
            return True
        key = block_key(self._hashes[place - self._first], self._group)
        tier = self._loads.tier_of(key)
        if tier is None:
            self.is_promoting = self.is_promoting or self._loads.is_promoting(key)
            return False
        self._found[place] = LoadedBlock(self._group, place, key, tier)
        return True

    def block(self, place: int) -> LoadedBlock:
        return self._found[place]
