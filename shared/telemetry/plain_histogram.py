"""A histogram of plain numbers, converted to a metric at collection.

The Prometheus library's own takes a lock and searches its buckets one by one; this is for events
per step or per token. Written in one thread, read in any.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.utils import floatToGoString

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prometheus_client.core import HistogramMetricFamily


class PlainHistogram:
    """Counts per bucket, and a sum."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """Make an empty histogram.

        `bounds`: ascending inclusive upper bounds; a last bucket has none.
        """
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def total(self) -> tuple[int, float]:
        """Number of counted values, and their sum."""
        return sum(self._counts), self._sum

    def sample(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Add the samples to `family`."""
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        counts = accumulate(tuple(self._counts))
        family.add_metric(list(labels), list(zip(bounds, counts, strict=True)), self._sum)
