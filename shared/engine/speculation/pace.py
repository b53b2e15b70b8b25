"""Number of drafts of one sequence, from the acceptance of its last drafts."""

from __future__ import annotations

import math

#: Weight of the newest draft in the average.
_NEWEST = 0.3
#: Factor on the expected number of accepted drafts; one more is tried.
_AMBITION = 1.5
#: Expected number for the first sequence of all.
FIRST_MEAN = 4.0
#: Drafts in a row without a hit after which the sequence pauses, twice as long each time.
_MISSES = 3
_LONGEST_REST = 64


class DraftPace:
    """Follows the acceptance of one sequence. Uses no time: equal answers have an equal pace."""

    __slots__ = ("_mean", "_num_misses", "_rest")

    def __init__(self, mean: float = FIRST_MEAN) -> None:
        """Start with `mean`, the number of accepted drafts expected until the sequence's own is
        known.
        """
        self._mean = mean
        self._num_misses = 0
        self._rest = 0

    @property
    def rests(self) -> bool:
        """Whether the next step gets no drafts."""
        return self._rest > 0

    def pass_step(self) -> None:
        """Count a step without a call of the proposer."""
        self._rest = max(0, self._rest - 1)

    def next_num(self, most: int) -> int:
        """Return the number of drafts for the next step, at most `most`.

        Call it or `pass_step` once per step.
        """
        if self._rest:
            self.pass_step()
            return 0
        return min(most, math.ceil(self._mean * _AMBITION) + 1)

    def note(self, *, num_drafted: int, num_accepted: int) -> None:
        """Record a checked draft.

        A draft that was accepted to its end might have been accepted further.
        """
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
