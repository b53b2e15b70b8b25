"""Medians and quartiles, and the ratios of them that the tables are about."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import quantiles
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Summary:
    """Of repeated measurements of one thing."""

    median: float
    first_quartile: float
    third_quartile: float
    num: int


def summarise(values: Sequence[float]) -> Summary:
    """Quartiles by linear interpolation between the values, which must not be empty.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("nothing was measured")
    if len(values) == 1:
        return Summary(values[0], values[0], values[0], 1)
    first, middle, third = quantiles(values, n=4, method="inclusive")
    return Summary(middle, first, third, len(values))


def advantage(ours: float, theirs: float, *, higher_is_better: bool) -> float:
    """How many times better we are: above 1 is better, whatever the unit."""
    return ours / theirs if higher_is_better else theirs / ours


def best(medians: Mapping[str, float], *, higher_is_better: bool) -> str | None:
    """The name with the best value; None where there are none."""
    if not medians:
        return None
    choose = max if higher_is_better else min
    return choose(medians, key=lambda name: medians[name])
