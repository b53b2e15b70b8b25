"""Pickers: the order of workers by their costs."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.routing.base import Candidate


class LeastCost:
    """Cheapest first. Equal costs are shuffled, so that routers do not all pick the same worker."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._random = (rng or random.Random()).random

    def order(self, costs: Sequence[tuple[float, Candidate]]) -> list[Candidate]:
        """See Picker."""
        if len(costs) == 1:
            return [costs[0][1]]
        draw = self._random
        shuffled = [(cost, draw(), candidate) for cost, candidate in costs]
        # Equal draws would compare candidates: their probability of 2**-53 is not zero.
        shuffled.sort(key=lambda entry: entry[:2])
        return [candidate for _, _, candidate in shuffled]

    def chosen(self, candidate: Candidate) -> None:
        """See Picker."""


class Shuffled:
    """A random order."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()

    def order(self, costs: Sequence[tuple[float, Candidate]]) -> list[Candidate]:
        """See Picker."""
        candidates = [candidate for _, candidate in costs]
        self._rng.shuffle(candidates)
        return candidates

    def chosen(self, candidate: Candidate) -> None:
        """See Picker."""


class InTurn:
    """By name, starting after the one that was chosen last."""

    def __init__(self) -> None:
        self._last = ""

    def order(self, costs: Sequence[tuple[float, Candidate]]) -> list[Candidate]:
        """See Picker."""
        candidates = sorted((c for _, c in costs), key=lambda c: c.endpoint.name)
        after = sum(c.endpoint.name <= self._last for c in candidates)
        return candidates[after:] + candidates[:after]

    def chosen(self, candidate: Candidate) -> None:
        """See Picker."""
        self._last = candidate.endpoint.name
