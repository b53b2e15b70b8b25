"""How many tokens to guess for one sequence, from how its last guesses did."""

from __future__ import annotations

import math

#: Weight of the newest draft in the average.
_NEWEST = 0.3
#: Of the expected number of accepted drafts, so many times are tried, and one more.
_AMBITION = 1.5
#: What is expected of the first sequence of all.
FIRST_MEAN = 4.0
#: Drafts in a row without a hit, after which the sequence rests, twice as long each time.
_MISSES = 3
_LONGEST_REST = 64


class DraftPace:
    """Follows the acceptance of one sequence. Knows no time: the same answers, the same pace."""

    __slots__ = ("_mean", "_num_misses", "_rest")

    def __init__(self, mean: float = FIRST_MEAN) -> None:
        """`mean`: drafts that are expected to be right, until its own are known."""
        self._mean = mean
        self._num_misses = 0
        self._rest = 0

    @property
    def rests(self) -> bool:
        """Whether the next step gets no drafts."""
        return self._rest > 0

    def pass_step(self) -> None:
        """A step goes by without asking."""
        self._rest = max(0, self._rest - 1)

    def next_num(self, most: int) -> int:
        """Drafts for the next step, at most `most`. Once per step, this or `pass_step`."""
        if self._rest:
            self.pass_step()
            return 0
        return min(most, math.ceil(self._mean * _AMBITION) + 1)

    def note(self, *, num_drafted: int, num_accepted: int) -> None:
        """A draft was checked. One that was right to its end might have been right for longer."""
        reached = float(num_accepted)
        if num_accepted == num_drafted:
            reached = max(self._mean, 2.0 * num_drafted)
        self._mean += _NEWEST * (reached - self._mean)
        if num_accepted:
            self._num_misses = 0
            return
        self._num_misses += 1
        if self._num_misses >= _MISSES:
            self._rest = min(2 ** (self._num_misses - _MISSES + 1), _LONGEST_REST)
