"""How fast a queue moves: learned while somebody waits in it."""

from __future__ import annotations

#: How much is kept of what was learned with every request: some fifty of them count.
_KEPT = 0.98


class Pace:
    """Seconds per unit of cost, between requests that found others waiting behind them."""

    def __init__(self) -> None:
        self._last_s: float | None = None
        self._num = self._cost = self._s = 0.0

    @property
    def s_per_cost(self) -> float | None:
        """None as long as nothing is known."""
        return self._s / self._cost if self._cost else None

    @property
    def mean_cost(self) -> float:
        """Of one request."""
        return self._cost / self._num if self._num else 0.0

    def begin(self, now_s: float) -> None:
        """Somebody waits."""
        self._last_s = now_s

    def note(self, now_s: float, cost: float) -> None:
        """A request left the queue."""
        last_s, self._last_s = self._last_s, now_s
        if last_s is not None:
            self._num = _KEPT * self._num + 1
            self._cost = _KEPT * self._cost + cost
            self._s = _KEPT * self._s + now_s - last_s

    def take_back(self, cost: float) -> None:
        """One that was noted did not take anybody's time."""
        if self._cost > cost:
            self._cost -= cost
            self._num -= 1

    def rest(self) -> None:
        """Nobody waits: the time until somebody does again says nothing."""
        self._last_s = None
