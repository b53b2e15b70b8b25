"""Each process's part of the book, in the books of the others."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from services.router.processes.wire import Told
from services.router.workers.timing.work import NOTHING, WorkReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from services.router.processes.link import Link
    from services.router.workers.endpoint import Endpoint

#: Time between two looks at what has changed.
PERIOD_S = 0.02
#: With so few workers the others are told of each request at once.
FEW_WORKERS = 16
#: Changes of a queue's length that are not worth a message.
SAME_MS = 10.0
#: Of held tokens: a part of what they were.
SAME_TOKENS = 32
#: The same for a share of time.
SAME_SHARE = 0.01


class SharedWork:
    """Tells the other processes what this one has booked, and counts what they have."""

    def __init__(
        self,
        link: Link,
        endpoints: Callable[[], Iterable[Endpoint]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`endpoints`: returns the live workers. `clock`: that of the book."""
        self._link = link
        self._endpoints = endpoints
        self._clock = clock
        #: By worker: what the others know of this process.
        self._told: dict[str, WorkReport] = {}
        #: By worker and process.
        self._elsewhere: dict[str, dict[int, WorkReport]] = {}
        #: Endpoints that count what is elsewhere.
        self._counted: dict[str, Endpoint] = {}

    async def run(self) -> None:
        """Keep the others up to date until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            self.tell()

    def tell_soon(self) -> None:
        """Tell the others now, unless that is much work."""
        if len(self._counted) <= FEW_WORKERS:
            self.tell()

    def tell(self) -> None:
        """Tell the others what has changed."""
        now_s = self._clock()
        present = {str(endpoint.record.worker): endpoint for endpoint in self._endpoints()}
        for worker, endpoint in present.items():
            if self._counted.get(worker) is not endpoint:
                self._counted[worker] = endpoint
                self._count(worker)
        changed = {}
        for worker, endpoint in present.items():
            report = endpoint.work.own(now_s)
            if not _is_same(report, self._told.get(worker, NOTHING)):
                self._told[worker] = report
                changed[worker] = report
        for gone in self._counted.keys() - present.keys():
            del self._counted[gone]
            self._told.pop(gone, None)
            self._elsewhere.pop(gone, None)
        if changed:
            self._link.tell(Told.WORK, changed)

    def tell_all(self) -> None:
        """Tell the others everything: one of them is new."""
        self._told.clear()
        self.tell()

    def take(self, process: int, reports: dict[str, list[Any]]) -> None:
        """Count what another process has booked."""
        for worker, (*numbers, bounds) in reports.items():
            report = WorkReport._make((*numbers, tuple((ms, number) for ms, number in bounds)))
            self._elsewhere.setdefault(worker, {})[process] = report
            self._count(worker)

    def drop(self, process: int) -> None:
        """Forget a process that has ended: its requests have ended as well."""
        for worker, reports in self._elsewhere.items():
            if reports.pop(process, None) is not None:
                self._count(worker)

    def _count(self, worker: str) -> None:
        endpoint = self._counted.get(worker)
        if endpoint is not None:
            endpoint.work.put_elsewhere(_sum(self._elsewhere.get(worker, {}).values()))


def _sum(reports: Iterable[WorkReport]) -> WorkReport:
    total = NOTHING
    for each in reports:
        bounds = dict(total.bounds)
        for bound_ms, number in each.bounds:
            bounds[bound_ms] = bounds.get(bound_ms, 0) + number
        sums = (one + other for one, other in zip(total[:-1], each[:-1], strict=True))
        total = WorkReport._make((*sums, tuple(bounds.items())))
    return total


def _is_same(one: WorkReport, other: WorkReport) -> bool:
    held, told = one.num_held_tokens, other.num_held_tokens
    return (
        one._replace(num_held_tokens=told)[:6] == other[:6]
        # Each token of an answer is one more.
        and abs(held - told) * SAME_TOKENS <= told
        and one.bounds == other.bounds
        and abs(one.queue_ms - other.queue_ms) < SAME_MS
        and abs(one.prompt_share - other.prompt_share) < SAME_SHARE
    )
