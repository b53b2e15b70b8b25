"""How many second attempts are made in all."""

from __future__ import annotations

#: Retries per request on average, and how many may come at once.
RATIO = 0.2
BURST = 20.0


class RetryBudget:
    """Keeps retries a fraction of requests: when every peer fails, they would only add load."""

    def __init__(self, *, ratio: float = RATIO, burst: float = BURST) -> None:
        self._ratio = ratio
        self._burst = burst
        self._saved = burst

    def earn(self) -> None:
        """A request came in."""
        self._saved = min(self._burst, self._saved + self._ratio)

    def spend(self) -> bool:
        """Whether one retry may be made now."""
        if self._saved < 1:
            return False
        self._saved -= 1
        return True
