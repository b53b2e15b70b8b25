"""The prefix cache of a simulated worker."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class BlockCache:
    """Hashes of blocks; the least recently used are evicted."""

    def __init__(self, num_blocks: int) -> None:
        """Make an empty cache of so many blocks."""
        self._num_blocks = num_blocks
        #: Least recently used first.
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    def num_held(self, hashes: Sequence[bytes]) -> int:
        """Return the number of leading blocks that it has."""
        return sum(1 for _ in itertools.takewhile(self._blocks.__contains__, hashes))

    def touch(self, hashes: Sequence[bytes]) -> None:
        """Use or store them; what is too much is evicted."""
        for block_hash in reversed(hashes):
            self._blocks[block_hash] = None
            self._blocks.move_to_end(block_hash)
        while len(self._blocks) > self._num_blocks:
            self._blocks.popitem(last=False)
