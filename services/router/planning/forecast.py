"""Forecasts of rates: a level and a trend, both smoothed (Holt)."""

from __future__ import annotations

import math

#: Old values count 1/e after these times.
LEVEL_S, TREND_S = 20.0, 60.0
#: A trend counts 1/e of itself after this time.
LASTING_S = 240.0


class Forecast:
    """Follows one number over time. Values may come at any intervals."""

    __slots__ = ("_last_s", "_level", "_level_s", "_trend", "_trend_s")

    def __init__(self, *, level_s: float = LEVEL_S, trend_s: float = TREND_S) -> None:
        """Start without a value."""
        self._level_s, self._trend_s = level_s, trend_s
        self._level, self._trend = 0.0, 0.0
        self._last_s: float | None = None

    def note(self, value: float, now_s: float) -> None:
        """Add the mean since the last note."""
        if self._last_s is None:
            self._level, self._last_s = value, now_s
            return
        passed_s = now_s - self._last_s
        if passed_s <= 0:
            return
        before = self._level
        expected = before + self._trend * passed_s
        self._level = expected + -math.expm1(-passed_s / self._level_s) * (value - expected)
        slope = (self._level - before) / passed_s
        self._trend += -math.expm1(-passed_s / self._trend_s) * (slope - self._trend)
        self._last_s = now_s

    @property
    def level(self) -> float:
        """The present value, not below 0."""
        return max(0.0, self._level)

    @property
    def trend(self) -> float:
        """Change per second."""
        return self._trend

    def after(self, seconds: float) -> float:
        """Return the value expected then, not below 0. A trend does not last for ever."""
        lasting_s = LASTING_S * -math.expm1(-seconds / LASTING_S)
        return max(0.0, self._level + self._trend * lasting_s)
