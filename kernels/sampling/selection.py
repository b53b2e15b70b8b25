"""The value above which a given weight lies, without sorting: quickselect by weight, on a CPU.

C. A. R. Hoare, "Algorithm 65: Find" (1961), with weights in place of ranks and, as in R. W. Floyd
and R. L. Rivest, "Expected time bounds for selection" (1975), two pivots from a sample, one on each
side of where the answer should be. The answer is exact whatever the sample is like.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SAMPLE = 512
#: Places in the sample between its guess and either pivot.
_MARGIN = 28
#: As few as this are sorted.
_SORTED = 1024
_TINY = float(np.finfo(np.float32).tiny)


def weighted_threshold(
    values: NDArray[np.float32], weights: NDArray[np.float32], total: float, target: float
) -> float:
    """The largest of `values` [n] such that all not less than it weigh `target` together.

    weights: [n], none negative, and their sum. Where rounding leaves that short of the target, the
    least value.
    """
    above = 0.0  # weight of what was left out because it is larger
    while len(values) > _SORTED:
        high, low = _pivots(values, weights, (target - above) / max(total, _TINY))
        kept = values >= high
        # Not by `dot`, whose threads get in the way of PyTorch's.
        upper = float((weights * kept).sum())
        if above + upper < target:
            above += upper
            kept ^= values >= low
        places = np.flatnonzero(kept)
        if len(places) == len(values):
            # The upper pivot is the least value: the sample was misleading, or there is no other.
            if values.max() == high:
                return float(high)
            break
        total = float(weights[places].sum())
        if values[places[0]] < high and above + total < target:
            # The least value stays: rounding must not leave nothing.
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
    """Two of the values, between which the upper `share` of the weight should end."""
    step = len(values) // _SAMPLE
    order = np.argsort(values[::step])[::-1]
    reached = weights[::step][order].cumsum()
    place = int(np.searchsorted(reached, share * reached[-1]))
    last = len(order) - 1
    high, low = order[max(0, place - _MARGIN)], order[min(last, place + _MARGIN)]
    return values[high * step], values[low * step]
