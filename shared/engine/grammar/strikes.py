"""Owners whose grammars were late in the engine's thread too often."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: After this number of late grammars within a period, no grammar of the owner is followed in the
#: engine's thread for the next period.
MAX_STRIKES = 3
PERIOD_S = 600.0
#: Number of owners that are kept.
_MAX_OWNERS = 4096


class Strikes:
    """All methods may be called in any thread."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._times: dict[bytes, deque[float]] = {}
        self._out_until: dict[bytes, float] = {}

    def add(self, owner: bytes) -> None:
        """Record that a grammar of this owner was late."""
        now_s = self._clock()
        with self._lock:
            times = self._times.pop(owner, deque(maxlen=MAX_STRIKES))
            times.append(now_s)
            self._times[owner] = times  # dropped last
            if len(times) == MAX_STRIKES and now_s - times[0] <= PERIOD_S:
                self._out_until[owner] = now_s + PERIOD_S
            while len(self._times) > _MAX_OWNERS:
                oldest = next(iter(self._times))
                del self._times[oldest]
                self._out_until.pop(oldest, None)

    def is_out(self, owner: bytes) -> bool:
        """Return whether the owner's grammars must not be followed in the engine's thread now."""
        until_s = self._out_until.get(owner)
        return until_s is not None and self._clock() < until_s
