"""Percentiles of values, from a random sample of them."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Sample:
    """At most `size` of the values that were added, each with the same chance of being kept.

    Vitter's algorithm R (Random sampling with a reservoir, 1985).
    """

    __slots__ = ("_num_added", "_rng", "_size", "values")

    def __init__(self, size: int, rng: random.Random | None = None) -> None:
        self._size = size
        self._rng = rng or random.Random()
        self._num_added = 0
        self.values: list[float] = []

    def add(self, value: float) -> None:
        """Add a value."""
        self._num_added += 1
        if len(self.values) < self._size:
            self.values.append(value)
            return
        place = self._rng.randrange(self._num_added)
        if place < self._size:
            self.values[place] = value


def percentile(values: Iterable[float], share: float) -> float | None:
    """Return the smallest value that `share` of all values do not exceed; None without values."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
