"""Copies between the blocks of a group's ranks and a host tier of whole blocks.

What the tier keeps does not depend on the number of ranks: other groups read its files. Behind
what a group of layers uses of a slot, bytes of an earlier block may be left, which nothing reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shared.connector.protocol.block_copy import block_ranges, checksum_blocks, copy_ranges
from shared.kv.hand_off import HandOff, Holder
from shared.kv.memory import KVMemory
from shared.kv.split import KVSplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shared.kv.cut import Cut
    from shared.kv.layout import KVLayout


class _Part(NamedTuple):
    """What moves between the blocks of one rank and whole blocks, of one group of layers."""

    rank: int
    #: Of the rank's block, and of the whole block.
    own: Cut
    whole: Cut


class GroupCopies:
    """See `BlockCopies`: for ranks of this host, whose memory is mapped here."""

    def __init__(
        self, layout: KVLayout, split: KVSplit, memories: Sequence[KVMemory], num_slots: int
    ) -> None:
        """Allocate. layout: of whole blocks. memories: by rank; they stay the caller's.

        Raises:
            ConfigError: the memory cannot be allocated.
        """
        self._memory = KVMemory(layout, num_slots)
        self._host = self._memory.blocks
        self._ranks = [memory.blocks for memory in memories]
        tier, ranks = Holder(layout, KVSplit.of(layout)), Holder(layout, split)
        gathers, scatters = HandOff(ranks, tier), HandOff(tier, ranks)
        groups = range(layout.num_groups)
        #: By group. What several ranks have alike comes from one of them, and goes to all.
        self._gathered = [
            [_Part(pair[0], here, there) for pair, here, there in _block_cuts(gathers, group)]
            for group in groups
        ]
        self._scattered = [
            [_Part(pair[1], there, here) for pair, here, there in _block_cuts(scatters, group)]
            for group in groups
        ]

    @property
    def host(self) -> NDArray[np.uint8]:
        """See `BlockCopies`."""
        return self._host

    @property
    def memory(self) -> KVMemory | None:
        """See `BlockCopies`."""
        return None

    def to_host(
        self, blocks: Sequence[int], slots: Sequence[int], groups: Sequence[int]
    ) -> NDArray[np.uint64]:
        """See `BlockCopies`."""
        for group, own, whole in _by_group(blocks, slots, groups):
            for part in self._gathered[group]:
                copy_ranges(
                    block_ranges(self._host, whole, [part.whole] * len(whole)),
                    block_ranges(self._ranks[part.rank], own, [part.own] * len(own)),
                )
        return checksum_blocks([self._host[slot] for slot in slots])

    def to_device(
        self, slots: Sequence[int], blocks: Sequence[int], groups: Sequence[int]
    ) -> NDArray[np.uint64]:
        """See `BlockCopies`. The checksums are those of the slots."""
        for group, own, whole in _by_group(blocks, slots, groups):
            for part in self._scattered[group]:
                copy_ranges(
                    block_ranges(self._ranks[part.rank], own, [part.own] * len(own)),
                    block_ranges(self._host, whole, [part.whole] * len(whole)),
                )
        return checksum_blocks([self._host[slot] for slot in slots])

    def close(self) -> None:
        """See `BlockCopies`."""
        self._ranks.clear()
        del self._host
        self._memory.close()


def _by_group(
    blocks: Sequence[int], slots: Sequence[int], groups: Sequence[int]
) -> Iterator[tuple[int, list[int], list[int]]]:
    """Yield each group with its blocks and their slots."""
    for group in set(groups):
        places = [place for place, each in enumerate(groups) if each == group]
        yield group, [blocks[place] for place in places], [slots[place] for place in places]


def _block_cuts(hand_off: HandOff, group: int) -> Iterator[tuple[tuple[int, int], Cut, Cut]]:
    """Yield what moves of one full block of a group, by pair of ranks.

    Ranks of a stage without layers of the group have nothing of it.
    """
    numbers = range(hand_off.layout.num_groups)
    moved = tuple(range(1 if number == group else 0) for number in numbers)
    for pair in hand_off.pairs:
        stream = hand_off.stream(pair, moved, hand_off.layout.block_size)
        for here, there in zip(stream.sender_cuts, stream.receiver_cuts, strict=True):
            yield pair, here, there
