"""The engine's pool as a source of blocks for a proposer."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from shared.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shared.kv.block_pool import BlockPool


class PoolDraftBlocks:
    """Takes blocks that the engine's sequences leave free; tracks those of the proposer."""

    def __init__(self, pool: BlockPool, reach: Callable[[int], None]) -> None:
        """Use this pool. `reach` makes the pool's first blocks, of the given number, writable."""
        self._pool = pool
        self._reach = reach
        self._held: Counter[int] = Counter()

    @property
    def held(self) -> Iterable[int]:
        """Every block of the proposer."""
        return self._held.elements()

    def allocate(self, num_blocks: int) -> list[int] | None:
        """See `DraftBlocks.allocate`."""
        if num_blocks > self._pool.num_free:
            return None
        blocks = self._pool.allocate(num_blocks)
        self._reach(self._pool.num_touched)
        self._held.update(blocks)
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """See `DraftBlocks.release`.

        Raises:
            InternalError: a block is not the proposer's.
        """
        if any(block not in self._held for block in blocks):
            raise InternalError("a proposer released a block that it does not hold")
        self._pool.release(blocks)
        for block in blocks:
            del self._held[block]
