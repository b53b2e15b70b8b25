"""Leaves a peer that failed alone for a while, longer each time, then lets one request try it.

The circuit breaker of M. Nygard, "Release It!": closed, open, half-open. One class serves all
uses of peers: fetching prefixes, and handing prompts to prefill workers.
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
#: Pauses are longer by a random share of up to this, so that workers do not try all at once.
JITTER = 0.25


class BreakerEvent(StrEnum):
    """What happened to a peer; the label of a metric."""

    #: It failed, and is left alone.
    OPENED = "opened"
    #: Its pause is over, and one request tries it.
    PROBED = "probed"
    #: It was tried and works.
    CLOSED = "closed"
    #: A request passed it over.
    SKIPPED = "skipped"


class BreakerMetrics:
    """Counts the events of all breakers of a worker, by what each is for."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._events = Counter(
            "baton_peer_breaker_events",
            "Peers that were left alone, tried again, passed over.",
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
        """What the breaker for `purpose` calls."""

        def count(event: BreakerEvent, num_open: int) -> None:
            self._events.labels(purpose, event.value).inc()
            self._open.labels(purpose).set(num_open)

        return count


@dataclass(slots=True)
class _Record:
    #: In a row.
    num_failures: int = 0
    num_pauses: int = 0
    retry_at_s: float = 0.0
    probing: bool = False


class PeerBreaker:
    """One record per incarnation: a restarted worker has none. A peer is forgotten when it
    succeeds, or when it has not failed for long.

    A request calls `begin`, then exactly one of `succeeded`, `failed` and `gave_up`; `gave_up`
    after one of the others does no harm.
    """

    def __init__(
        self,
        *,
        threshold: int = 1,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = lambda: random.uniform(0, JITTER),
        observe: Callable[[BreakerEvent, int], None] = lambda event, num_open: None,
    ) -> None:
        """`threshold` failures in a row open it. `observe` is told of events and how many peers
        are left alone then.
        """
        self._threshold = threshold
        self._clock = clock
        self._jitter = jitter
        self._observe = observe
        self._records: dict[WorkerId, _Record] = {}

    def allows(self, worker: WorkerId) -> bool:
        """Whether it may be asked now."""
        record = self._records.get(worker)
        if record is None or not record.num_pauses:
            return True
        return self._clock() >= record.retry_at_s and not record.probing

    def begin(self, worker: WorkerId) -> bool:
        """Whether the caller may ask it now. After a pause one caller may, and the others wait."""
        if not self.allows(worker):
            self._note(BreakerEvent.SKIPPED)
            return False
        record = self._records.get(worker)
        if record is not None and record.num_pauses:
            record.probing = True
            self._note(BreakerEvent.PROBED)
        return True

    def succeeded(self, worker: WorkerId) -> None:
        """It did what it should."""
        record = self._records.pop(worker, None)
        if record is not None and record.num_pauses:
            self._note(BreakerEvent.CLOSED)

    def failed(self, worker: WorkerId, *, surely: bool = False) -> None:
        """Count a failure: the peer is left alone for one second, then two, up to a minute.

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
        # Requests that asked it at the same time count once.
        if not record.num_pauses or now_s >= record.retry_at_s:
            pause_s = min(FIRST_PAUSE_S * 2**record.num_pauses, MAX_PAUSE_S)
            record.num_pauses = min(record.num_pauses + 1, 16)
            record.retry_at_s = now_s + pause_s * (1 + self._jitter())
            self._note(BreakerEvent.OPENED)

    def gave_up(self, worker: WorkerId) -> None:
        """The caller lost interest before it knew: the next one may try."""
        record = self._records.get(worker)
        if record is not None:
            record.probing = False

    def _note(self, event: BreakerEvent) -> None:
        self._observe(event, sum(record.num_pauses > 0 for record in self._records.values()))

    def _forget_old(self, now_s: float) -> None:
        old = [w for w, r in self._records.items() if now_s > r.retry_at_s + 2 * MAX_PAUSE_S]
        for worker in old:
            del self._records[worker]
