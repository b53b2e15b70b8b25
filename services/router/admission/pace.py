"""Pace of a queue, learned while requests wait in it."""

from __future__ import annotations

#: Weight that older requests keep with each new one: about the last fifty count.
_KEPT = 0.98


class Pace:
    """Seconds per unit of cost, between requests that found others waiting behind them."""

    def __init__(self) -> None:
        self._last_s: float | None = None
        self._num = self._cost = self._s = 0.0

    @property
    def s_per_cost(self) -> float | None:
        """Seconds per unit of cost; None before the first measurement."""
        return self._s / self._cost if self._cost else None

    @property
    def mean_cost(self) -> float:
        """Mean cost of a request; 0 before the first measurement."""
        return self._cost / self._num if self._num else 0.0

    def begin(self, now_s: float) -> None:
        """Start the measurement: the first request waits."""
        self._last_s = now_s

    def note(self, now_s: float, cost: float) -> None:
        """Learn from a request that left the queue."""
        last_s, self._last_s = self._last_s, now_s
        if last_s is not None:
            self._num = _KEPT * self._num + 1
            self._cost = _KEPT * self._cost + cost
            self._s = _KEPT * self._s + now_s - last_s

    def take_back(self, cost: float) -> None:
        """Remove a noted request that used no time of the workers."""
        if self._cost > cost:
            self._cost -= cost
            self._num -= 1

    def rest(self) -> None:
        """Pause the measurement: no request waits."""
        self._last_s = None
