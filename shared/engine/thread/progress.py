"""Progress of the engine's thread. Written by that thread, read by any other."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class EngineProgress:
    """Start of the thread's present piece of work, and its number of finished steps.

    No lock: every field is one reference that one thread replaces.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s: float | None = None
        self.num_steps = 0

    @property
    def busy_for_s(self) -> float:
        """Time [s] of the running step or command; 0 while the thread sleeps."""
        since_s = self._since_s
        return 0.0 if since_s is None else max(0.0, self._clock() - since_s)

    def idle(self) -> None:
        """Record that the thread waits for work."""
        self._since_s = None

    def busy(self) -> None:
        """Record that the thread begins a piece of work."""
        self._since_s = self._clock()

    def stepped(self) -> None:
        """Record that a step has ended."""
        self.num_steps += 1
        self.busy()
