"""The silence of a peer after which it counts as lost, independent of the request's deadline."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

from shared.errors import WorkerLostError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

#: Number of checks for progress per bound.
_LOOKS = 8


class StallClock:
    """Measures time since the last sign of progress. The caller decides what counts as one."""

    def __init__(
        self, bound_s: float, *, peer: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start the clock. `peer` is named in the error."""
        self._bound_s = bound_s
        self._peer = peer
        self._clock = clock
        self._heard_at_s = clock()
        self._most_seen = 0

    @property
    def remaining_s(self) -> float:
        """Time [s] until the peer has been silent for too long; never negative."""
        return max(0.0, self._heard_at_s + self._bound_s - self._clock())

    def heard(self) -> None:
        """Record a sign of progress."""
        self._heard_at_s = self._clock()

    def saw(self, amount: int) -> None:
        """Record the amount of work done, in any unit: an increase is progress."""
        if amount > self._most_seen:
            self._most_seen = amount
            self.heard()

    async def wait(self, task: asyncio.Future[T], look: Callable[[], int]) -> T:
        """Return the result of `task`, which is never cancelled here.

        `look` returns the amount of work done, as in `saw`.

        Raises:
            WorkerLostError: there was no progress for too long.
        """
        while not task.done():
            self.saw(look())
            if not self.remaining_s:
                raise WorkerLostError(f"{self._peer} made no progress for {self._bound_s:g} s")
            # Progress is dated by its check, so checks must be frequent.
            pause_s = min(self.remaining_s, self._bound_s / _LOOKS)
            await asyncio.wait({task}, timeout=pause_s)
        return task.result()
