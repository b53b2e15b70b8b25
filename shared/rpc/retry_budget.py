"""The total number of retries."""

from __future__ import annotations

#: Retries per request on average, and the maximum in a burst.
RATIO = 0.2
BURST = 20.0


class RetryBudget:
    """Keeps retries a fraction of requests: if every peer fails, they would only add load."""

    def __init__(self, *, ratio: float = RATIO, burst: float = BURST) -> None:
        self._ratio = ratio
        self._burst = burst
        self._saved = burst

    def earn(self) -> None:
        """Count a request."""
        self._saved = min(self._burst, self._saved + self._ratio)

    def spend(self) -> bool:
        """Return whether one retry may be made now, and count it."""
        if self._saved < 1:
            return False
        self._saved -= 1
        return True
