"""All blocks that an engine finds by content: in its pool, and in the tiers below it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.kv.identity import block_keys
from shared.kv.tier import BlockTier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shared.engine.offload.offload import KVOffload
    from shared.engine.offload.stats import TierStats
    from shared.kv.block_pool import BlockPool
    from shared.kv.change_log import CacheChange
    from shared.kv.prefix_cache import PrefixCache


class CachedBlocks:
    """The tiers of one engine, the pool being the first. Used in the engine's thread."""

    def __init__(self, pool: BlockPool, cache: PrefixCache, offload: KVOffload | None) -> None:
        self.offload = offload
        self._pool = pool
        self._cache = cache

    @property
    def is_loading(self) -> bool:
        """Whether blocks of a lower tier are being loaded."""
        return self.offload is not None and self.offload.is_loading

    def count(self, block_hashes: Sequence[bytes], *, first_block: int = 0) -> int:
        """How many leading blocks are here, in whatever tier, of a prefix from `first_block` on."""
        groups = self._cache.num_groups
        num = self._cache.match(block_hashes, first_block=first_block).num_blocks
        if self.offload is None or not self._cache.enabled:
            return num
        behind = block_keys(block_hashes[num:], groups)
        return num + len(self.offload.loads.find(behind) or ()) // groups

    def promote(
        self, block_hashes: Sequence[bytes], done: Callable[[], None], *, first_block: int = 0
    ) -> None:
        """Load leading blocks that are in lower tiers only into the pool, where they are cached.

        `done` is called when that is over: at once, or in a later `poll`. It is no promise that all
        are there.
        """
        if self.offload is None:
            done()
            return
        groups = self._cache.num_groups
        pin, hits = self._cache.pin(block_hashes, first_block=first_block)
        hashes = block_hashes[hits.num_blocks :]
        behind = block_keys(hashes, groups)
        tiers = self.offload.loads.find(behind) or ()
        blocks = self._pool.allocate(min(len(tiers), self._pool.num_free))

        def loaded(num: int) -> None:
            num //= groups
            for group in range(groups):
                self._cache.publish(blocks[group : num * groups : groups], hashes[:num], group)
            self._cache.unpin(pin)
            done()

        num_loading = self.offload.loads.load(behind[: len(blocks)], blocks, loaded)
        # The load keeps those that it fills.
        self._pool.release(blocks)
        if not num_loading:
            self._cache.unpin(pin)
            done()

    def poll(self) -> bool:
        """Take note of copies that are over; whether any was."""
        return self.offload is not None and self.offload.poll()

    def after_step(self, num_tokens: Iterable[int], seconds: float) -> None:
        """Note a step that has ended, and store the blocks that it made final."""
        if self.offload is not None:
            self.offload.note_step(num_tokens, seconds)
            self.offload.stores.start()

    def take_changes(self) -> list[CacheChange]:
        """What lookups in each tier gained and lost since the last call."""
        changes = self._pool.changes.take()
        return changes if self.offload is None else changes + self.offload.take_changes()

    def snapshots(self) -> dict[BlockTier, list[bytes]]:
        """Every hash that each tier finds now, once."""
        held = {BlockTier.DEVICE: self._pool.hashes()}
        return held if self.offload is None else held | self.offload.snapshots()

    def forget_all(self) -> int:
        """Forget everything in all tiers; returns how many blocks of the pool had a hash.

        Raises:
            UnavailableError: blocks are in use; nothing was forgotten.
        """
        if self.offload is not None and not self.is_loading:
            self.offload.settle()
        num = self._pool.forget_all()
        if self.offload is not None:
            self.offload.clear()
        return num

    def stats(self) -> dict[BlockTier, TierStats]:
        """The state of each lower tier."""
        return {} if self.offload is None else self.offload.stats()

    def close(self) -> None:
        """Give the lower tiers' memory and files back."""
        if self.offload is not None:
            self.offload.close()
            self.offload = None
