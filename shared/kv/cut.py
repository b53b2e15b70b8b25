"""Parts of a block: the bytes that a transfer moves when it does not move whole blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Cut:
    """Ranges of a block's bytes in the order in which they move; none touches the next."""

    #: By range: (offset, number of bytes).
    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> Cut:
        """Return the cut of these ranges; a range that continues the one before is joined to it."""
        joined: list[tuple[int, int]] = []
        for offset, size in ranges:
            if joined and sum(joined[-1]) == offset:
                joined[-1] = joined[-1][0], joined[-1][1] + size
            elif size:
                joined.append((offset, size))
        return cls(tuple(joined))

    @property
    def num_bytes(self) -> int:
        """Number of bytes of all ranges."""
        return sum(size for _, size in self.ranges)

    @property
    def end(self) -> int:
        """The least size of a block that has these ranges."""
        return max((offset + size for offset, size in self.ranges), default=0)

    @property
    def is_one_piece(self) -> bool:
        """Whether the bytes lie together, so that nothing has to be packed."""
        return len(self.ranges) == 1
