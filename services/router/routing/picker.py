"""Pickers: from costs to an order."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.endpoint import Endpoint


class LeastCost:
    """The cheapest first. Equal costs are shuffled, so that routers do not all pick the same."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()

    def order(self, costs: Sequence[tuple[float, Endpoint]]) -> list[Endpoint]:
        """See Picker."""
        shuffled = [(cost, self._rng.random(), endpoint) for cost, endpoint in costs]
        return [endpoint for _, _, endpoint in sorted(shuffled, key=lambda entry: entry[:2])]
