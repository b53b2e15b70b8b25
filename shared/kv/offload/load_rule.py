"""Whether a prefix is loaded from lower tiers or computed: whichever took less time recently."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.kv.tier import BlockTier

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Weight of the newest measurement.
_WEIGHT = 0.2
#: Age after which a measurement is dropped and made again.
_MAX_AGE_S = 10.0


class _Average:
    """An average that follows measurements; unknown at first."""

    __slots__ = ("_at_s", "value")

    def __init__(self) -> None:
        self.value: float | None = None
        self._at_s = 0.0

    def add(self, value: float, now_s: float) -> None:
        old = value if self.value is None else self.value
        self.value = old + _WEIGHT * (value - old)
        self._at_s = now_s

    def known(self, now_s: float) -> float | None:
        """Return the value; None if it is unknown or too old."""
        return self.value if now_s - self._at_s <= _MAX_AGE_S else None


class LoadRule:
    """Compares measured times of loading and of computing.

    Loading costs a time per block and tier, and once the time from the last byte to the step that
    continues from there. Unknown or outdated times count as zero: loading measures them. All times
    are passed by the caller.
    """

    def __init__(self, *, block_size: int, always: bool = False) -> None:
        """Start without measurements. `block_size`: tokens that a block saves computing."""
        self._block_size = block_size
        self._always = always
        self._token_s = _Average()
        self._wait_s = _Average()
        self._block_s = {tier: _Average() for tier in (BlockTier.HOST, BlockTier.DISK)}

    def note_computed(self, num_tokens: int, seconds: float, now_s: float) -> None:
        """Record a step that computed this many tokens of prompts."""
        self._token_s.add(seconds / num_tokens, now_s)

    def note_loaded(self, tier: BlockTier, num_blocks: int, seconds: float, now_s: float) -> None:
        """Record that this number of blocks came from `tier`, queueing included."""
        self._block_s[tier].add(seconds / num_blocks, now_s)

    def note_waited(self, seconds: float, now_s: float) -> None:
        """Record how long loaded blocks waited until their sequence could continue."""
        self._wait_s.add(seconds, now_s)

    def num_worth(
        self, tiers: Sequence[Iterable[BlockTier]], now_s: float, *, is_whole: bool = False
    ) -> int:
        """Return how many of a prefix's next blocks of tokens to load.

        `tiers`: for each block of tokens, the tiers of its KV blocks. `is_whole`: all or none.
        """
        if self._always or self._token_s.value is None:
            return len(tiers)
        block_computing_s = self._token_s.value * self._block_size
        costs = {tier: average.known(now_s) or 0.0 for tier, average in self._block_s.items()}
        saved_s = -(self._wait_s.known(now_s) or 0.0)
        best, best_s = 0, 0.0
        for num, loaded in enumerate(tiers, 1):
            saved_s += block_computing_s - sum(costs[tier] for tier in loaded)
            if saved_s > best_s:
                best, best_s = num, saved_s
        if is_whole:
            return len(tiers) if saved_s > 0 else 0
        return best
