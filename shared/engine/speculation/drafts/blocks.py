"""The engine's own pool, as a proposer sees it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from shared.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shared.kv.block_pool import BlockPool


class PoolDraftBlocks:
    """Takes from what the engine's sequences leave; knows what a proposer holds."""

    def __init__(self, pool: BlockPool, reach: Callable[[int], None]) -> None:
        """`reach` makes the pool's first so many blocks ready to be written."""
        self._pool = pool
        self._reach = reach
        self._held: Counter[int] = Counter()

    @property
    def held(self) -> Iterable[int]:
        """Every block that the proposer holds."""
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
        """See `DraftBlocks.release`. Raises InternalError if one is not the proposer's."""
        if any(block not in self._held for block in blocks):
            raise InternalError("a proposer released a block that it does not hold")
        self._pool.release(blocks)
        for block in blocks:
            del self._held[block]
