"""Fit of a cost with non-negative coefficients to successive measurements with outliers.

Ridge regression towards a prior with exponential forgetting. Rows are divided by the predicted
value, so that relative errors count, and weighted after Huber ("Robust estimation of a location
parameter", 1964) with a threshold that follows the median error. Negative coefficients are left out
one by one (the active set of Lawson and Hanson's non-negative least squares).
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Weight of a measurement after the next one. 0.98: about the last fifty decide.
FORGETTING = 0.98
#: Weight of older measurements after a time without any.
STALE_WEIGHT = 0.1
#: Weight of the prior in measurements: small, because a coefficient that is far too small in the
#: prior is weak in every row. The prior decides only what the measurements do not determine.
PRIOR_WEIGHT = 0.01
#: Errors of more than this number of median errors count less.
HUBER_MEDIANS = 2.0
_MEDIAN_STEP = 1.15
_MEDIAN_BOUNDS = (0.02, 2.0)


class RobustFit:
    """y = coefficients · x, with x, y and the coefficients at least 0."""

    def __init__(
        self,
        prior: Callable[[], Sequence[float]],
        *,
        prior_weight: float = PRIOR_WEIGHT,
        stale_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start from the prior. `prior` returns the coefficients, all greater than 0.

        Without a measurement for `stale_s` seconds the coefficients are the prior's again, and the
        next measurement weighs more than the old ones.
        """
        self._prior = prior
        self._stale_s = stale_s
        self._clock = clock
        self._measured_s = -math.inf
        self._prior_weight = prior_weight
        size = len(prior())
        self._products = np.zeros((size, size))
        self._targets = np.zeros(size)
        self._pull = prior_weight * np.eye(size)
        self._median_error = _MEDIAN_BOUNDS[1]
        self.num_measurements = 0
        self._coefficients = tuple(prior())

    @property
    def coefficients(self) -> Sequence[float]:
        """The coefficients: those of the prior without a measurement that is recent enough."""
        return self._prior() if self._is_stale() else self._coefficients

    def predict(self, x: Sequence[float]) -> float:
        """Return the expected value."""
        return sum(a * b for a, b in zip(self.coefficients, x, strict=True))

    def observe(self, x: Sequence[float], y: float) -> None:
        """Learn from a measurement; ignores a `y` that is not greater than 0."""
        expected = self.predict(x)
        if not y > 0 or not expected > 0:
            return
        error = abs(y - expected) / expected
        weight = min(1.0, HUBER_MEDIANS * self._median_error / error) if error else 1.0
        step = _MEDIAN_STEP if error > self._median_error else 1 / _MEDIAN_STEP
        low, high = _MEDIAN_BOUNDS
        self._median_error = min(high, max(low, self._median_error * step))
        row = np.asarray(x) / expected
        kept = STALE_WEIGHT if self._is_stale() else FORGETTING
        self._products = kept * self._products + weight * (row[:, None] * row)
        self._targets = kept * self._targets + weight * (y / expected) * row
        self.num_measurements += 1
        self._measured_s = self._clock()
        self._coefficients = tuple(self._solve())

    def _is_stale(self) -> bool:
        return not self.num_measurements or self._clock() - self._measured_s > self._stale_s

    def _solve(self) -> list[float]:
        prior = np.asarray(self._prior())
        # In units of the prior every coefficient is about 1.
        products = self._products * (prior[:, None] * prior) + self._pull
        targets = self._targets * prior + self._prior_weight
        solution = np.linalg.solve(products, targets)
        if (solution >= 0).all():
            found: list[float] = (solution * prior).tolist()
            return found
        active = list(range(len(prior)))
        while True:
            solution = np.linalg.solve(products[np.ix_(active, active)], targets[active])
            negative = [i for i, value in zip(active, solution, strict=True) if value < 0]
            if not negative:
                break
            worst = min(zip(solution, active, strict=True))[1]
            active.remove(worst)
        result = np.zeros(len(prior))
        result[active] = solution * prior[active]
        return [float(value) for value in result]
