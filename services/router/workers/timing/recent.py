"""Sums in which old entries hardly count."""

from __future__ import annotations

import math


class Recent:
    """A sum whose entries decay to a share of 1/e after `window_s`."""

    __slots__ = ("_last_s", "_sum", "_window_s")

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._sum = 0.0
        self._last_s = 0.0

    def add(self, value: float, now_s: float) -> None:
        """Add an entry at `now_s`."""
        self._sum = self.total(now_s) + value
        self._last_s = now_s

    def total(self, now_s: float) -> float:
        """Return the faded sum at `now_s`."""
        if not self._sum:
            return 0.0
        return self._sum * math.exp((self._last_s - now_s) / self._window_s)
