"""Gives sequences their blocks, and shows the finished ones to the prefix cache."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.engine.sequence import Sequence
    from shared.kv.block_pool import BlockPool
    from shared.kv.content_log import ContentLog
    from shared.kv.prefix_cache import PrefixCache


class BlockManager:
    """Between the scheduler, which thinks in tokens, and the pool, which thinks in blocks.

    A block that a lookup can find is full and never written again; so the blocks that a sequence
    writes to are always its own.
    """

    #: Gets what published blocks contain, if anybody wants to know.
    contents: ContentLog | None = None

    def __init__(self, pool: BlockPool, cache: PrefixCache, *, block_size: int) -> None:
        self._pool = pool
        self._cache = cache
        self.block_size = block_size

    def match_prefix(self, seq: Sequence) -> list[int]:
        """Cached blocks that the sequence could start from. At least one token is left over.

        Nothing is looked up for a sequence that wants logprobs of its prompt: they come from
        computing it.
        """
        if not self._cache.enabled or seq.prompt_logprobs is not None:
            return []
        return self._cache.match(seq.full_block_hashes(seq.num_tokens - 1, self.block_size))

    def num_tokens_in(self, full_blocks: list[int]) -> int:
        """Tokens that full blocks hold."""
        return len(full_blocks) * self.block_size

    def try_admit(self, seq: Sequence, hit_blocks: list[int], *, num_spare_blocks: int) -> bool:
        """Give the sequence blocks for all its tokens, if that leaves `num_spare_blocks` free."""
        num_new = self._num_blocks(seq.num_tokens) - len(hit_blocks)
        num_needed = num_new + self._pool.num_free_among(hit_blocks) + num_spare_blocks
        if num_needed > self._pool.num_free:
            return False
        self._pool.acquire(hit_blocks)
        seq.block_table.extend(hit_blocks)
        seq.block_table.extend(self._pool.allocate(num_new))
        seq.num_published_blocks = len(hit_blocks)
        seq.num_cached_tokens = len(hit_blocks) * self.block_size
        seq.num_computed_tokens = seq.num_cached_tokens
        return True

    def try_grow(self, seq: Sequence, num_tokens: int) -> bool:
        """Make room for the KV of the first `num_tokens` tokens, if there are blocks for it."""
        if num_tokens <= len(seq.block_table) * self.block_size:
            return True
        num_new = self._num_blocks(num_tokens) - len(seq.block_table)
        if num_new > self._pool.num_free:
            return False
        seq.block_table.extend(self._pool.allocate(num_new))
        return True

    def publish(self, seq: Sequence) -> None:
        """Show lookups the blocks that became full and final. Not before the step is over."""
        first, end = seq.num_published_blocks, seq.num_computed_tokens // self.block_size
        if first < end and self._cache.enabled:
            hashes = seq.full_block_hashes(seq.num_computed_tokens, self.block_size)
            if self.contents is not None:
                size = self.block_size
                self.contents.note(hashes, seq.token_ids, first=first, block_size=size)
            self._cache.publish(seq.block_table[first:end], hashes[first:])
            seq.num_published_blocks = end

    def free(self, seq: Sequence) -> None:
        """Take all blocks away. The only way in which a sequence's blocks go back."""
        self._pool.release(seq.block_table)
        del seq.block_table[:]

    def check_integrity(self, seqs: list[Sequence]) -> None:
        """Raise InternalError unless `seqs` and pins account for every reference."""
        self._pool.check_integrity()
        used = Counter(block for seq in seqs for block in seq.block_table)
        self._pool.check_references(used + self._cache.pinned())

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)
