"""Whole blocks from one rank to one: a single transfer."""

from __future__ import annotations

from itertools import accumulate, chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.connector.base import OutboundTransfer


class WholeOutbound:
    """A `SequenceOutbound`. The blocks of the first group come first in the transfer, and so on."""

    def __init__(
        self, transfer: OutboundTransfer, *, moved: Sequence[range], block_bytes: int
    ) -> None:
        """`moved`: by group, the blocks of its table that move: those of the transfer."""
        self._transfer = transfer
        self._moved = moved
        sizes = [len(blocks) for blocks in moved]
        #: By group: index in the transfer of the first block that moves.
        self._first_index = [0, *accumulate(sizes[:-1])]
        self.num_blocks = sum(sizes)
        self.num_bytes = self.num_blocks * block_bytes

    @property
    def num_slices(self) -> int:
        """See `SequenceOutbound.num_slices`."""
        return 1

    def final_slices(self, group: int, num_layers: int) -> int:
        """See `SequenceOutbound.final_slices`: blocks are final when a step is over."""
        return 0

    async def push(
        self,
        group: int,
        first_block: int,
        blocks: Sequence[int],
        slices: range | None = None,
    ) -> None:
        """See `SequenceOutbound.push`."""
        moved = self._moved[group]
        num_skipped = max(0, moved.start - first_block)
        some = blocks[num_skipped : moved.stop - first_block]
        if some:
            index = self._first_index[group] + first_block + num_skipped - moved.start
            await self._transfer.push(index, some)

    async def push_all(self, tables: Sequence[Sequence[int]]) -> None:
        """See `SequenceOutbound.push_all`."""
        await self._transfer.push(0, list(chain.from_iterable(tables)))

    async def finish(self, timeout_s: float) -> int:
        """See `SequenceOutbound.finish`."""
        return await self._transfer.finish(timeout_s)

    async def abort(self) -> None:
        """See `SequenceOutbound.abort`."""
        await self._transfer.abort()
