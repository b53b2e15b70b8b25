"""Memory of a draft's KV: pages cut from blocks of the engine's pool.

A draft has fewer layers than its target, so a block of the pool holds several pages, which may
belong to several sequences. A block is released with its last page. Knows bytes and numbers, no
sequences.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from shared.errors import ConfigError

if TYPE_CHECKING:
    from array import array

    import torch

    from shared.engine.speculation.base import DraftBlocks, ProposerContext
    from shared.model.spec.decoder import DecoderSpec


class DraftPages:
    """The cache of a draft's layers, and its used pages."""

    def __init__(self, context: ProposerContext, spec: DecoderSpec, dtype: torch.dtype) -> None:
        """Make the cache for a draft of this shape that computes in `dtype`.

        Raises:
            ConfigError: its KV does not fit the blocks.
        """
        self._blocks: DraftBlocks = context.blocks
        self._block_bytes = context.arena.layout.block_bytes
        (layers,) = spec.kv_groups
        kinds, num_kv_heads, head_dim = spec.attentions[layers[0]].kv_shape
        token_bytes = len(layers) * kinds * num_kv_heads * head_dim * dtype.itemsize
        #: Tokens per page.
        self.page_size = _page_size(context.arena.layout.block_size, token_bytes, self._block_bytes)
        self._page_bytes = self.page_size * token_bytes
        flat = context.arena.bytes().flatten()
        num_pages = len(flat) // self._page_bytes
        #: [pages, layers, kinds, kv heads, page size, head dim]. Pages across the border of two
        #: blocks of the pool are never used.
        self.kv_cache = (
            flat[: num_pages * self._page_bytes]
            .view(dtype)
            .view(
                num_pages,
                len(layers),
                kinds,
                num_kv_heads,
                self.page_size,
                head_dim,
            )
        )
        self._free: list[int] = []
        #: By block of the pool: number of its used pages.
        self._num_taken: Counter[int] = Counter()

    @property
    def num_blocks(self) -> int:
        """Number of held blocks of the pool."""
        return len(self._num_taken)

    def try_grow(self, table: array[int], num_tokens: int) -> bool:
        """Add pages to `table` for this number of tokens; return False if blocks are missing."""
        num_missing = -(-num_tokens // self.page_size) - len(table)
        while num_missing > len(self._free):
            blocks = self._blocks.allocate(1)
            if blocks is None:
                self._release_unused()
                return False
            pages = self._pages_of(blocks[0])
            self._num_taken[blocks[0]] = 0
            self._free.extend(reversed(pages))
        for _ in range(num_missing):
            page = self._free.pop()
            self._num_taken[self._block_of(page)] += 1
            table.append(page)
        return True

    def release(self, table: array[int]) -> None:
        """Empty `table`, and release the blocks whose pages are all unused."""
        for page in table:
            self._num_taken[self._block_of(page)] -= 1
        self._free.extend(table)
        del table[:]
        self._release_unused()

    def _release_unused(self) -> None:
        unused = [block for block, num in self._num_taken.items() if num == 0]
        if not unused:
            return
        for block in unused:
            del self._num_taken[block]
        self._free = [page for page in self._free if self._block_of(page) in self._num_taken]
        self._blocks.release(unused)

    def _block_of(self, page: int) -> int:
        return page * self._page_bytes // self._block_bytes

    def _pages_of(self, block: int) -> range:
        """Return the pages that lie wholly in `block`."""
        start, end = block * self._block_bytes, (block + 1) * self._block_bytes
        return range(-(-start // self._page_bytes), end // self._page_bytes)


def _page_size(block_size: int, token_bytes: int, block_bytes: int) -> int:
    """Return the largest of the pool's block size, its half, quarter, …: every block has a page.

    That holds if pages fill a block exactly, or two pages are no longer than a block.
    """
    size = block_size
    while size:
        page_bytes = size * token_bytes
        if block_bytes % page_bytes == 0 or 2 * page_bytes <= block_bytes:
            return size
        size //= 2
    raise ConfigError(
        f"speculative_config: model keeps {token_bytes} bytes of KV per token, too many for blocks "
        f"of {block_bytes} bytes: a draft must be smaller than its target"
    )
