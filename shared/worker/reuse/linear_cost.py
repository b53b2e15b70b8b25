"""A cost with a fixed and a proportional part, learned from what things took."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: A new sample multiplies the weight of those before it: about the last ten count.
_FORGET = 0.9


@dataclass(frozen=True, slots=True)
class Rates:
    """Milliseconds for each time something begins, and for each unit of it. Both positive."""

    per_start_ms: float
    per_unit_ms: float

    def total_ms(self, num_starts: float, num_units: float) -> float:
        """Grows with both."""
        return self.per_start_ms * num_starts + self.per_unit_ms * num_units


class LinearCost:
    """Least squares over the relative errors of recent samples, with a prior.

    Relative, so that a sample that took ten times as long as it should (a stopped process, a busy
    core) weighs little, and so that small and large ones count alike. Samples lose their weight
    with time: without new ones the rates go back to the prior, so that what was slow once is tried
    again. Rates are never negative, so the cost never falls when the work grows.
    """

    def __init__(
        self,
        prior: Callable[[], Rates],
        *,
        prior_weight: float,
        half_life_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`prior_weight` is in samples."""
        self._prior = prior
        self._prior_weight = prior_weight
        self._half_life_s = half_life_s
        self._clock = clock
        self._at_s = clock()
        # Sums over samples of products of s = starts/ms, u = units/ms, and 1.
        self._ss = self._su = self._uu = self._s = self._u = 0.0

    def observe(self, num_starts: float, num_units: float, took_ms: float) -> None:
        """Something took so long. Sums over several things are as good as single ones."""
        if took_ms <= 0 or num_starts < 0 or num_units < 0 or not (num_starts or num_units):
            return
        self._decay(_FORGET)
        s, u = num_starts / took_ms, num_units / took_ms
        self._ss += s * s
        self._su += s * u
        self._uu += u * u
        self._s += s
        self._u += u

    def rates(self) -> Rates:
        """As they are believed to be now."""
        self._decay(1.0)
        prior, weight = self._prior(), self._prior_weight
        # In units of the prior, where both rates are near 1: the numbers are well scaled.
        start, unit = prior.per_start_ms, prior.per_unit_ms
        ss = self._ss * start * start + weight
        uu = self._uu * unit * unit + weight
        su = self._su * start * unit
        s, u = self._s * start + weight, self._u * unit + weight
        determinant = ss * uu - su * su
        a = (s * uu - u * su) / determinant
        b = (u * ss - s * su) / determinant
        if a < 0 or b < 0:
            # The best of a convex function on the border: one of the two is zero.
            a, b = max((s / ss, 0.0), (0.0, u / uu), key=lambda ab: s * ab[0] + u * ab[1])
        return Rates(a * start, b * unit)

    def _decay(self, factor: float) -> None:
        now_s = self._clock()
        factor *= 0.5 ** ((now_s - self._at_s) / self._half_life_s)
        self._at_s = now_s
        self._ss *= factor
        self._su *= factor
        self._uu *= factor
        self._s *= factor
        self._u *= factor
