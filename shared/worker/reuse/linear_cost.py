"""A cost with a fixed and a proportional part, learned from measured times."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: A new sample multiplies the weight of those before it: about the last ten count.
_FORGET = 0.9
#: A sample over this multiple of the expected time counts as that multiple: a stopped process or a
#: busy core must not spoil the estimate, but a lasting change is learned after a few samples.
_CLIP = 3.0
_CLIP_FROM_SAMPLES = 2.0


@dataclass(frozen=True, slots=True)
class Rates:
    """Milliseconds per start, and per unit."""

    per_start_ms: float
    per_unit_ms: float

    def total_ms(self, num_starts: float, num_units: float) -> float:
        """Return the time for this number of starts and units."""
        return self.per_start_ms * num_starts + self.per_unit_ms * num_units


class LinearCost:
    """Ridge regression on recent samples: least squares with a pull towards a prior.

    A sample's error counts relative to its size, so that small and large ones count equally.
    Samples lose their weight with time: without new ones the rates return to the prior, so that a
    slow peer is tried again. Rates are never negative: a cost never falls when the work grows.
    """

    def __init__(
        self,
        scale: Rates,
        *,
        prior: Callable[[], Rates] | None = None,
        prior_weight: float,
        half_life_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start from the prior. `scale` is the size of a large sample, with positive rates.

        It is the prior, too, unless there is another one. `prior_weight` is in samples.
        """
        self._scale = scale
        self._prior = prior or (lambda: scale)
        self._prior_weight = prior_weight
        self._half_life_s = half_life_s
        self._clock = clock
        self._at_s = clock()
        self._num_samples = 0.0
        # Sums of products of a sample's starts s, units u and time t, each in units of the scale.
        self._ss = self._su = self._uu = self._st = self._ut = 0.0

    def observe(self, num_starts: float, num_units: float, took_ms: float) -> None:
        """Add a measured time. Sums over several items are as good as single ones."""
        size_ms = self._scale.total_ms(num_starts, num_units)
        if took_ms <= 0 or min(num_starts, num_units) < 0 or size_ms <= 0:
            return
        if self._num_samples >= _CLIP_FROM_SAMPLES:
            took_ms = min(took_ms, _CLIP * self.rates().total_ms(num_starts, num_units))
        self._decay(_FORGET)
        s = num_starts * self._scale.per_start_ms / size_ms
        u = num_units * self._scale.per_unit_ms / size_ms
        t = took_ms / size_ms
        self._num_samples += 1
        self._ss += s * s
        self._su += s * u
        self._uu += u * u
        self._st += s * t
        self._ut += u * t

    def rates(self) -> Rates:
        """Return the present estimate."""
        self._decay(1.0)
        start, unit, weight = self._scale.per_start_ms, self._scale.per_unit_ms, self._prior_weight
        prior = self._prior()
        ss, uu, su = self._ss + weight, self._uu + weight, self._su
        st = self._st + weight * prior.per_start_ms / start
        ut = self._ut + weight * prior.per_unit_ms / unit
        determinant = ss * uu - su * su
        a = (st * uu - ut * su) / determinant
        b = (ut * ss - st * su) / determinant
        if a < 0 or b < 0:
            # The minimum of a convex function on the border of its domain: one of the two is zero.
            a, b = max(((st / ss, 0.0), (0.0, ut / uu)), key=lambda ab: st * ab[0] + ut * ab[1])
        return Rates(a * start, b * unit)

    def _decay(self, factor: float) -> None:
        now_s = self._clock()
        factor *= 0.5 ** ((now_s - self._at_s) / self._half_life_s)
        self._at_s = now_s
        self._num_samples *= factor
        self._ss *= factor
        self._su *= factor
        self._uu *= factor
        self._st *= factor
        self._ut *= factor
