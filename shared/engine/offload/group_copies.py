"""Copies between the blocks of a group's ranks and a host tier of whole blocks.

What the tier keeps does not depend on the number of ranks: other groups read its files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.connector.protocol.block_copy import block_ranges, checksum_blocks, copy_ranges
from shared.errors import ConfigError
from shared.kv.hand_off import HandOff, Holder
from shared.kv.memory import KVMemory
from shared.kv.split import KVSplit

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shared.kv.cut import Cut
    from shared.kv.layout import KVLayout


class GroupCopies:
    """See `BlockCopies`: for ranks of this host, whose memory is mapped here."""

    def __init__(
        self, layout: KVLayout, split: KVSplit, memories: Sequence[KVMemory], num_slots: int
    ) -> None:
        """Allocate. layout: of whole blocks. memories: by rank; they stay the caller's.

        Raises:
            ConfigError: the memory cannot be allocated, or the blocks are of several kinds.
        """
        if layout.num_groups > 1:
            raise ConfigError(
                f"kv_offload_host_gib: the model has {layout.num_groups} groups of layers, whose "
                "blocks several ranks divide differently: leave it out, or take one rank"
            )
        self._memory = KVMemory(layout, num_slots)
        self._host = self._memory.blocks
        self._ranks = [memory.blocks for memory in memories]
        whole, group = Holder(layout, KVSplit.of(layout)), Holder(layout, split)
        #: By rank: the ranges of its block and those of the whole block that they are.
        self._gathered = [(pair[0], *cuts) for pair, cuts in _block_cuts(HandOff(group, whole))]
        self._scattered = [
            (pair[1], there, here) for pair, (here, there) in _block_cuts(HandOff(whole, group))
        ]

    @property
    def host(self) -> NDArray[np.uint8]:
        """See `BlockCopies`."""
        return self._host

    @property
    def memory(self) -> KVMemory | None:
        """See `BlockCopies`."""
        return None

    def to_host(self, blocks: Sequence[int], slots: Sequence[int]) -> NDArray[np.uint64]:
        """See `BlockCopies`."""
        for rank, theirs, whole in self._gathered:
            copy_ranges(
                block_ranges(self._host, slots, [whole] * len(slots)),
                block_ranges(self._ranks[rank], blocks, [theirs] * len(blocks)),
            )
        return checksum_blocks([self._host[slot] for slot in slots])

    def to_device(self, slots: Sequence[int], blocks: Sequence[int]) -> NDArray[np.uint64]:
        """See `BlockCopies`. The checksums are those of the slots."""
        for rank, theirs, whole in self._scattered:
            copy_ranges(
                block_ranges(self._ranks[rank], blocks, [theirs] * len(blocks)),
                block_ranges(self._host, slots, [whole] * len(slots)),
            )
        return checksum_blocks([self._host[slot] for slot in slots])

    def close(self) -> None:
        """See `BlockCopies`."""
        self._ranks.clear()
        del self._host
        self._memory.close()


def _block_cuts(hand_off: HandOff) -> list[tuple[tuple[int, int], tuple[Cut, Cut]]]:
    """Return what moves of one full block, by pair of ranks."""
    found = []
    for pair in hand_off.pairs:
        stream = hand_off.stream(pair, (range(1),), hand_off.layout.block_size)
        [here], [there] = stream.sender_cuts, stream.receiver_cuts
        found.append((pair, (here, there)))
    return found
