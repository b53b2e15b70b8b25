"""Least recently used: whoever was not wanted for the longest time leaves."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class LruPolicy:
    """One list. All operations are O(1), except that `victims` steps over pinned blocks."""

    def __init__(self) -> None:
        #: Least recently used first.
        self._order: OrderedDict[bytes, None] = OrderedDict()

    def insert(self, key: bytes) -> None:
        """As the most recent."""
        self._order[key] = None

    def touch(self, key: bytes) -> None:
        """As the most recent."""
        self._order.move_to_end(key)

    def victims(
        self, num: int, *, incoming: Sequence[bytes], may_evict: Callable[[bytes], bool]
    ) -> list[bytes] | None:
        """The oldest that may be evicted."""
        found = list(islice(filter(may_evict, self._order), num))
        return found if len(found) == num else None

    def evict(self, key: bytes) -> None:
        """Forgotten."""
        del self._order[key]

    def remove(self, key: bytes) -> None:
        """Forgotten."""
        del self._order[key]

    def clear(self) -> None:
        """All are gone."""
        self._order.clear()

    def order(self) -> Iterable[bytes]:
        """Oldest first."""
        return list(self._order)

    def check_integrity(self) -> None:
        """One list cannot contradict itself."""
