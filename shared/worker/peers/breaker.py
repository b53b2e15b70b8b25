"""Avoids a failed peer for a while, longer each time, then lets one request try it.

The circuit breaker of M. Nygard, "Release It!": closed, open, half-open. One class serves all uses
of peers: fetching prefixes, and sending prompts to prefill workers.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from prometheus_client import Counter, Gauge

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry

    from shared.identity import WorkerId

FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0
#: Maximum random increase of pauses, as a share, so that workers do not all try at once.
JITTER = 0.25


class BreakerEvent(StrEnum):
    """An event of a breaker; the label of a metric."""

    #: The peer failed, and is avoided.
    OPENED = "opened"
    #: Its pause is over, and one request tries it.
    PROBED = "probed"
    #: It was tried and works.
    CLOSED = "closed"
    #: A request skipped it.
    SKIPPED = "skipped"


class BreakerMetrics:
    """Counts the events of all breakers of a worker, by purpose."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._events = Counter(
            "baton_peer_breaker_events",
            "Events of circuit breakers: peers avoided, tried again, skipped.",
            ["purpose", "event"],
            registry=registry,
        )
        self._open = Gauge(
            "baton_peers_left_alone",
            "Peers that failed and have not worked since.",
            ["purpose"],
            registry=registry,
        )

    def observe(self, purpose: str) -> Callable[[BreakerEvent, int], None]:
        """Return the observer for the breaker for `purpose`."""

        def count(event: BreakerEvent, num_open: int) -> None:
            self._events.labels(purpose, event.value).inc()
            self._open.labels(purpose).set(num_open)

        return count


@dataclass(slots=True)
class _Record:
    #: Failures in a row.
    num_failures: int = 0
    num_pauses: int = 0
    retry_at_s: float = 0.0
    probing: bool = False


class PeerBreaker:
    """One record per incarnation: a restarted worker has none.

    The record of a peer is dropped when it succeeds, or after a time without failures. A request
    calls `begin`, then exactly one of `succeeded`, `failed` and `gave_up`; `gave_up` after one of
    the others has no effect.
    """

    def __init__(
        self,
        *,
        threshold: int = 1,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = lambda: random.uniform(0, JITTER),
        observe: Callable[[BreakerEvent, int], None] = lambda event, num_open: None,
    ) -> None:
        """Make a breaker that opens after `threshold` failures in a row.

        `observe` is called with events and the present number of avoided peers.
        """
        self._threshold = threshold
        self._clock = clock
        self._jitter = jitter
        self._observe = observe
        self._records: dict[WorkerId, _Record] = {}

    def allows(self, worker: WorkerId) -> bool:
        """Return whether the peer may be asked now."""
        record = self._records.get(worker)
        if record is None or not record.num_pauses:
            return True
        return self._clock() >= record.retry_at_s and not record.probing

    def begin(self, worker: WorkerId) -> bool:
        """Return whether the caller may ask the peer now.

        After a pause one caller may; others wait.
        """
        if not self.allows(worker):
            self._note(BreakerEvent.SKIPPED)
            return False
        record = self._records.get(worker)
        if record is not None and record.num_pauses:
            record.probing = True
            self._note(BreakerEvent.PROBED)
        return True

    def succeeded(self, worker: WorkerId) -> None:
        """Record a success."""
        record = self._records.pop(worker, None)
        if record is not None and record.num_pauses:
            self._note(BreakerEvent.CLOSED)

    def failed(self, worker: WorkerId, *, surely: bool = False) -> None:
        """Record a failure: the peer is avoided for one second, then two, up to a minute.

        With `surely` one failure is enough: the peer would fail the next request, too.
        """
        now_s = self._clock()
        self._forget_old(now_s)
        record = self._records.setdefault(worker, _Record())
        record.probing = False
        record.num_failures += 1
        if not record.num_pauses and not surely and record.num_failures < self._threshold:
            record.retry_at_s = now_s
            return
        # Failures of concurrent requests count once.
        if not record.num_pauses or now_s >= record.retry_at_s:
            pause_s = min(FIRST_PAUSE_S * 2**record.num_pauses, MAX_PAUSE_S)
            record.num_pauses = min(record.num_pauses + 1, 16)
            record.retry_at_s = now_s + pause_s * (1 + self._jitter())
            self._note(BreakerEvent.OPENED)

    def gave_up(self, worker: WorkerId) -> None:
        """Record the end of a request without a result: the next one may try."""
        record = self._records.get(worker)
        if record is not None:
            record.probing = False

    def _note(self, event: BreakerEvent) -> None:
        self._observe(event, sum(record.num_pauses > 0 for record in self._records.values()))

    def _forget_old(self, now_s: float) -> None:
        old = [w for w, r in self._records.items() if now_s > r.retry_at_s + 2 * MAX_PAUSE_S]
        for worker in old:
            del self._records[worker]
