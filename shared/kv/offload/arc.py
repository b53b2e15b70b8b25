"""ARC: separates blocks used once from blocks used again, so that a scan evicts little.

N. Megiddo, D. S. Modha: "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003. T1 is
`recent`, T2 `frequent`, B1 and B2 their ghosts, p the `target`. It differs from the paper where
blocks come in batches: the target moves once for a whole batch before its victims are chosen, and
pinned blocks are skipped. A hit in a ghost list is a block that is stored again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from shared.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Keys = OrderedDict[bytes, None]


class ArcPolicy:
    """Adapts the share of blocks used once to recent misses."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        #: Keys used once, and keys used more often. Least recently used first.
        self._recent: Keys = OrderedDict()
        self._frequent: Keys = OrderedDict()
        #: Keys evicted from `recent` and from `frequent`: kept without their bytes.
        self._recent_ghosts: Keys = OrderedDict()
        self._frequent_ghosts: Keys = OrderedDict()
        #: Target size of `recent`, 0 to capacity.
        self.target = 0.0

    def insert(self, key: bytes) -> None:
        """Add `key` to `frequent` if it is kept as evicted, to `recent` otherwise."""
        self.target = self._adapted(self.target, key)
        if key in self._recent_ghosts or key in self._frequent_ghosts:
            self._recent_ghosts.pop(key, None)
            self._frequent_ghosts.pop(key, None)
            self._frequent[key] = None
        else:
            self._recent[key] = None
        self._trim_ghosts()

    def touch(self, key: bytes) -> None:
        """Move `key` to the end of `frequent`."""
        self._recent.pop(key, None)
        self._frequent[key] = None
        self._frequent.move_to_end(key)

    def victims(
        self, num: int, *, incoming: Sequence[bytes], may_evict: Callable[[bytes], bool]
    ) -> list[bytes] | None:
        """Return keys from `recent` while it is over its target, from `frequent` otherwise."""
        target, num_recent = self.target, len(self._recent)
        for key in incoming:
            target = self._adapted(target, key)
        # The paper's tie: at the target, a miss that `frequent` would have caught takes from
        # `recent`.
        if any(key in self._frequent_ghosts for key in incoming):
            target -= 1
        recent = filter(may_evict, self._recent)
        frequent = filter(may_evict, self._frequent)
        found: list[bytes] = []
        while len(found) < num:
            victim = next(recent, None) if num_recent > target else next(frequent, None)
            if victim is None:
                # The other list, or no list at all.
                victim = next(frequent, None) or next(recent, None)
            if victim is None:
                return None
            num_recent -= victim in self._recent
            found.append(victim)
        return found

    def evict(self, key: bytes) -> None:
        """Move `key` from its list to that of evicted keys."""
        if key in self._recent:
            del self._recent[key]
            self._recent_ghosts[key] = None
        else:
            del self._frequent[key]
            self._frequent_ghosts[key] = None
        self._trim_ghosts()

    def remove(self, key: bytes) -> None:
        """Drop the key."""
        if key in self._recent:
            del self._recent[key]
        else:
            del self._frequent[key]

    def clear(self) -> None:
        """Drop all keys, including evicted ones."""
        for keys in self._lists():
            keys.clear()
        self.target = 0.0

    def order(self) -> Iterable[bytes]:
        """Return keys used once first, each list from the oldest on."""
        return [*self._recent, *self._frequent]

    def check_integrity(self) -> None:
        """Check the paper's invariants.

        Raises:
            InternalError: one does not hold.
        """
        lists = self._lists()
        capacity = self._capacity
        recent, frequent, recent_ghosts, _ = map(len, lists)
        _check(len(set().union(*lists)) == sum(map(len, lists)), "a block is in two lists")
        _check(recent + frequent <= capacity, "more blocks than capacity")
        _check(recent + recent_ghosts <= capacity, "too many recent ghosts")
        _check(sum(map(len, lists)) <= 2 * capacity, "too many ghosts")
        _check(0 <= self.target <= capacity, f"the target is {self.target}")

    def _adapted(self, target: float, key: bytes) -> float:
        """Return the target after a miss of `key`."""
        num_recent, num_frequent = len(self._recent_ghosts), len(self._frequent_ghosts)
        if key in self._recent_ghosts:
            return min(self._capacity, target + max(1.0, num_frequent / num_recent))
        if key in self._frequent_ghosts:
            return max(0.0, target - max(1.0, num_recent / num_frequent))
        return target

    def _trim_ghosts(self) -> None:
        while self._recent_ghosts and len(self._recent) + len(self._recent_ghosts) > self._capacity:
            self._recent_ghosts.popitem(last=False)
        while self._frequent_ghosts and sum(map(len, self._lists())) > 2 * self._capacity:
            self._frequent_ghosts.popitem(last=False)

    def _lists(self) -> tuple[Keys, Keys, Keys, Keys]:
        return self._recent, self._frequent, self._recent_ghosts, self._frequent_ghosts


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise InternalError(f"ARC: {message}")
