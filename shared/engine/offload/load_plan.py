"""The blocks of the lower tiers with which a prefix can go on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from shared.kv.tier import BlockTier


class LoadedBlock(NamedTuple):
    """A block to be loaded: its group and its place in the group's table."""

    group: int
    place: int
    key: bytes
    tier: BlockTier


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Blocks behind a prefix's first `first_block` blocks, in ascending order of their places."""

    first_block: int
    #: Number of blocks of tokens that the prefix grows by.
    num_blocks: int
    #: Of every group the blocks that its rule needs to go on behind the grown prefix.
    blocks: tuple[LoadedBlock, ...]
    #: Whether the prefix grows only if all blocks arrive: a window ends at the last one.
    is_whole: bool

    @property
    def end(self) -> int:
        """Number of blocks of tokens in the grown prefix."""
        return self.first_block + self.num_blocks

    @property
    def keys(self) -> tuple[bytes, ...]:
        """The keys of the blocks."""
        return tuple(block.key for block in self.blocks)

    def tiers(self) -> list[list[BlockTier]]:
        """Return for each block of tokens the tiers of its blocks; a window has none at first."""
        found: list[list[BlockTier]] = [[] for _ in range(self.num_blocks)]
        for block in self.blocks:
            found[block.place - self.first_block].append(block.tier)
        return found

    def shortened(self, num_blocks: int) -> LoadPlan:
        """Return a plan for the first blocks of tokens; for none if it is whole and too long."""
        if num_blocks >= self.num_blocks:
            return self
        num_blocks = 0 if self.is_whole else num_blocks
        end = self.first_block + num_blocks
        blocks = tuple(block for block in self.blocks if block.place < end)
        return LoadPlan(self.first_block, num_blocks, blocks, self.is_whole)

    def num_grown(self, num_arrived: int) -> int:
        """Return by how many blocks of tokens the prefix grows with the leading blocks alone."""
        if num_arrived == len(self.blocks):
            return self.num_blocks
        return 0 if self.is_whole else self.blocks[num_arrived].place - self.first_block


NO_LOAD = LoadPlan(0, 0, (), is_whole=False)
