"""Finds the value above which a given weight lies: quickselect by weight, on a CPU.

The algorithm is C. A. R. Hoare, "Algorithm 65: Find" (1961), with weights in place of ranks, and
with two pivots from a sample, one on each side of the expected answer, as in R. W. Floyd and R. L.
Rivest, "Expected time bounds for selection" (1975). The answer is exact for any sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SAMPLE = 512
#: Places in the sample between the expected answer and either pivot.
_MARGIN = 28
#: So many values, or fewer, are sorted.
_SORTED = 1024
_TINY = float(np.finfo(np.float32).tiny)


def weighted_threshold(
    values: NDArray[np.float32], weights: NDArray[np.float32], total: float, target: float
) -> float:
    """Return the largest of `values` [n] such that it and all larger ones weigh at least `target`.

    weights: [n], none negative; total: their sum. If rounding keeps the sum below the target, the
    least value is returned.
    """
    above = 0.0  # weight of the values that were dropped because they are larger
    while len(values) > _SORTED:
        high, low = _pivots(values, weights, (target - above) / max(total, _TINY))
        kept = values >= high
        # Not by `dot`: its threads compete with PyTorch's.
        upper = float((weights * kept).sum())
        if above + upper < target:
            above += upper
            kept ^= values >= low
        places = np.flatnonzero(kept)
        if len(places) == len(values):
            # The upper pivot is the least value: the sample misled, or all values are equal.
            if values.max() == high:
                return float(high)
            break
        total = float(weights[places].sum())
        if values[places[0]] < high and above + total < target:
            # The least value stays, so that rounding never leaves an empty set.
            above += total
            places = np.flatnonzero((values < low) | (values == values.min()))
            total = float(weights[places].sum())
        values, weights = values[places], weights[places]
    order = np.argsort(values)[::-1]
    reached = above + weights[order].cumsum(dtype=np.float64)
    place = min(int(np.searchsorted(reached, target)), len(order) - 1)
    return float(values[order[place]])


def _pivots(
    values: NDArray[np.float32], weights: NDArray[np.float32], share: float
) -> tuple[np.float32, np.float32]:
    """Return two values between which the upper `share` of the weight is expected to end."""
    step = len(values) // _SAMPLE
    order = np.argsort(values[::step])[::-1]
    reached = weights[::step][order].cumsum()
    place = int(np.searchsorted(reached, share * reached[-1]))
    last = len(order) - 1
    high, low = order[max(0, place - _MARGIN)], order[min(last, place + _MARGIN)]
    return values[high * step], values[low * step]
