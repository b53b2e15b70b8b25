"""Which owners' grammars have been late in the engine's thread too often."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: So many grammars that seemed cheap and were not, within a period, and for the period that
#: follows no grammar of this owner is followed in the engine's thread.
MAX_STRIKES = 3
PERIOD_S = 600.0
#: Owners that are remembered.
_MAX_OWNERS = 4096


class Strikes:
    """All methods may be called in any thread."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._times: dict[bytes, deque[float]] = {}
        self._out_until: dict[bytes, float] = {}

    def add(self, owner: bytes) -> None:
        """Note that a grammar of this owner was late."""
        now_s = self._clock()
        with self._lock:
            times = self._times.pop(owner, deque(maxlen=MAX_STRIKES))
            times.append(now_s)
            self._times[owner] = times  # the last one to be forgotten
            if len(times) == MAX_STRIKES and now_s - times[0] <= PERIOD_S:
                self._out_until[owner] = now_s + PERIOD_S
            while len(self._times) > _MAX_OWNERS:
                oldest = next(iter(self._times))
                del self._times[oldest]
                self._out_until.pop(oldest, None)

    def is_out(self, owner: bytes) -> bool:
        """Whether nothing of this owner's is to be followed in the engine's thread now."""
        until_s = self._out_until.get(owner)
        return until_s is not None and self._clock() < until_s
