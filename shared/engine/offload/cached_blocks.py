"""All blocks that an engine finds by content: in its pool and in the tiers below it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.engine.offload.load_plan import NO_LOAD
from shared.errors import UnavailableError
from shared.kv.tier import BlockTier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shared.engine.offload.offload import KVOffload
    from shared.engine.offload.stats import TierStats
    from shared.kv.block_pool import BlockPool
    from shared.kv.change_log import CacheChange
    from shared.kv.prefix_cache import PrefixCache


class CachedBlocks:
    """The tiers of one engine; the first is the pool. Use it in the engine's thread."""

    def __init__(self, pool: BlockPool, cache: PrefixCache, offload: KVOffload | None) -> None:
        self.offload = offload
        self._pool = pool
        self._cache = cache

    @property
    def is_loading(self) -> bool:
        """Whether blocks of a lower tier are being loaded."""
        return self.offload is not None and self.offload.is_loading

    def count(self, block_hashes: Sequence[bytes], *, first_block: int = 0) -> int:
        """Return how many blocks of a prefix are cached without a gap from `first_block` on, in any
        tier.
        """
        num = self._cache.match(block_hashes, first_block=first_block).num_blocks
        if self.offload is None or not self._cache.enabled:
            return num
        plan = self.offload.loads.find(block_hashes[num:], first_block=first_block + num)
        return num if plan is None else num + plan.num_blocks

    def promote(
        self, block_hashes: Sequence[bytes], done: Callable[[], None], *, first_block: int = 0
    ) -> None:
        """Load the leading blocks that only lower tiers have into the pool, where they are cached.

        `done` is called after that: at once, or in a later `poll`. Not all blocks may have arrived
        then.
        """
        if self.offload is None:
            done()
            return
        pin, hits = self._cache.pin(block_hashes, first_block=first_block)
        hashes, first = block_hashes[hits.num_blocks :], first_block + hits.num_blocks
        plan = self.offload.loads.find(hashes, first_block=first) or NO_LOAD
        while len(plan.blocks) > self._pool.num_free:
            plan = plan.shortened(plan.num_blocks - 1)
        blocks = self._pool.allocate(len(plan.blocks))

        def loaded(num: int) -> None:
            for (group, place, _, _), block in zip(plan.blocks, blocks, strict=True):
                if place < first + num:
                    self._cache.publish([block], [hashes[place - first]], group)
            self._cache.unpin(pin)
            done()

        is_loading = self.offload.loads.load(plan, blocks, loaded)
        # The load holds the blocks that it fills.
        self._pool.release(blocks)
        if not is_loading:
            self._cache.unpin(pin)
            done()

    def poll(self) -> bool:
        """Process finished copies; return whether there was one."""
        return self.offload is not None and self.offload.poll()

    def after_step(self, num_tokens: Iterable[int], seconds: float) -> None:
        """Record a step that has ended, and store the blocks that became final by it."""
        if self.offload is not None:
            self.offload.note_step(num_tokens, seconds)
            self.offload.stores.start()

    def take_changes(self) -> list[CacheChange]:
        """Return the changes of lookups in each tier since the last call."""
        changes = self._pool.changes.take()
        return changes if self.offload is None else changes + self.offload.take_changes()

    def snapshots(self) -> dict[BlockTier, list[bytes]]:
        """Return every hash that each tier finds now, once."""
        held = {BlockTier.DEVICE: self._pool.hashes()}
        return held if self.offload is None else held | self.offload.snapshots()

    def forget_all(self) -> int:
        """Drop everything in all tiers; return how many blocks of the pool had a hash.

        Raises:
            UnavailableError: blocks are in use; nothing was dropped.
        """
        if self.offload is not None and not self.is_loading:
            self.offload.settle()
        if self.offload is not None and self.offload.landings.num_slots:
            raise UnavailableError("a prompt is in host memory and waits for blocks of the pool")
        num = self._pool.forget_all()
        if self.offload is not None:
            self.offload.clear()
        return num

    def stats(self) -> dict[BlockTier, TierStats]:
        """Return the state of each lower tier."""
        return {} if self.offload is None else self.offload.stats()

    def close(self) -> None:
        """Free the lower tiers' memory and files."""
        if self.offload is not None:
            self.offload.close()
            self.offload = None
