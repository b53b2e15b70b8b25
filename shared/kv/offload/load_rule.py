"""Whether a prefix is loaded from lower tiers or computed anew: whatever took less time lately."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.kv.tier import BlockTier

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Weight of the newest measurement.
_WEIGHT = 0.2
#: What was measured longer ago says little: then it is tried again.
_MAX_AGE_S = 10.0


class _Average:
    """Moves towards what is measured; unknown at first."""

    __slots__ = ("_at_s", "value")

    def __init__(self) -> None:
        self.value: float | None = None
        self._at_s = 0.0

    def add(self, value: float, now_s: float) -> None:
        old = value if self.value is None else self.value
        self.value = old + _WEIGHT * (value - old)
        self._at_s = now_s

    def known(self, now_s: float) -> float | None:
        """The value, unless it is too old."""
        return self.value if now_s - self._at_s <= _MAX_AGE_S else None


class LoadRule:
    """Compares the seconds that loading takes with those of computing, as measured here.

    Loading costs a time per block and tier, and once the time from the last byte to the step that
    goes on from there. What is not known yet, or no longer, counts as nothing: loading it is how
    it becomes known. All times come from the caller.
    """

    def __init__(self, *, block_size: float, always: bool = False) -> None:
        """`block_size`: the number of tokens that need no computing when one block is loaded."""
        self._block_size = block_size
        self._always = always
        self._token_s = _Average()
        self._wait_s = _Average()
        self._block_s = {tier: _Average() for tier in (BlockTier.HOST, BlockTier.DISK)}

    def note_computed(self, num_tokens: int, seconds: float, now_s: float) -> None:
        """A step computed this many tokens of prompts."""
        self._token_s.add(seconds / num_tokens, now_s)

    def note_loaded(self, tier: BlockTier, num_blocks: int, seconds: float, now_s: float) -> None:
        """That many blocks came from `tier`, queueing included."""
        self._block_s[tier].add(seconds / num_blocks, now_s)

    def note_waited(self, seconds: float, now_s: float) -> None:
        """Loaded blocks waited that long until their sequence could go on."""
        self._wait_s.add(seconds, now_s)

    def num_worth(self, tiers: Iterable[BlockTier], now_s: float) -> int:
        """Of a prefix's next blocks, given by the tier of each: how many to load."""
        tiers = list(tiers)
        if self._always or self._token_s.value is None:
            return len(tiers)
        block_computing_s = self._token_s.value * self._block_size
        costs = {tier: average.known(now_s) or 0.0 for tier, average in self._block_s.items()}
        saved_s = -(self._wait_s.known(now_s) or 0.0)
        best, best_s = 0, 0.0
        for num, tier in enumerate(tiers, 1):
            saved_s += block_computing_s - costs[tier]
            if saved_s > best_s:
                best, best_s = num, saved_s
        return best
