"""Leaves a peer that failed alone for a while, longer each time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.identity import WorkerId

FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0


@dataclass(slots=True)
class _Record:
    num_failures: int
    retry_at_s: float


class PeerBreaker:
    """Per life of a worker: who restarts begins anew. A peer is forgotten when it succeeds, or
    when nobody has heard of a failure for long.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._records: dict[WorkerId, _Record] = {}

    def allows(self, worker: WorkerId) -> bool:
        """Whether it may be asked now."""
        record = self._records.get(worker)
        return record is None or self._clock() >= record.retry_at_s

    def succeeded(self, worker: WorkerId) -> None:
        """It did what it should."""
        self._records.pop(worker, None)

    def failed(self, worker: WorkerId) -> None:
        """It cost time and brought nothing: one second of rest, then two, up to a minute."""
        now_s = self._clock()
        self._forget_old(now_s)
        record = self._records.setdefault(worker, _Record(0, now_s))
        pause_s = min(FIRST_PAUSE_S * 2**record.num_failures, MAX_PAUSE_S)
        # Requests that asked it at the same time count once.
        if now_s >= record.retry_at_s:
            record.num_failures = min(record.num_failures + 1, 16)
            record.retry_at_s = now_s + pause_s

    def _forget_old(self, now_s: float) -> None:
        old = [w for w, r in self._records.items() if now_s > r.retry_at_s + 2 * MAX_PAUSE_S]
        for worker in old:
            del self._records[worker]
