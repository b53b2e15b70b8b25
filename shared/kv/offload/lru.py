"""LRU: evicts the block whose last use was longest ago."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class LruPolicy:
    """One list. All operations are O(1), except that `victims` skips pinned blocks."""

    def __init__(self) -> None:
        #: Least recently used first.
        self._order: OrderedDict[bytes, None] = OrderedDict()

    def insert(self, key: bytes) -> None:
        """Make `key` the most recently used."""
        self._order[key] = None

    def touch(self, key: bytes) -> None:
        """Make `key` the most recently used."""
        self._order.move_to_end(key)

    def victims(
        self, num: int, *, incoming: Sequence[bytes], may_evict: Callable[[bytes], bool]
    ) -> list[bytes] | None:
        """Return the `num` oldest blocks that may be evicted; None if there are fewer."""
        found = list(islice(filter(may_evict, self._order), num))
        return found if len(found) == num else None

    def evict(self, key: bytes) -> None:
        """Drop the block."""
        del self._order[key]

    def remove(self, key: bytes) -> None:
        """Drop the block."""
        del self._order[key]

    def clear(self) -> None:
        """Drop all blocks."""
        self._order.clear()

    def order(self) -> Iterable[bytes]:
        """Return all blocks, oldest first."""
        return list(self._order)

    def check_integrity(self) -> None:
        """Do nothing: a single list has no invariant to break."""
