"""The requests that ended last: their costs, and their routing decisions."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from services.router.dashboard.history import mean_itl_ms
from services.router.dashboard.reason import kept_part
from services.router.usage import Timings

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.router.dashboard.reason import Kept
    from services.router.routing.trail import Trail
    from services.router.watch.observer import RequestEnd

MAX_REQUESTS = 200
#: Number of characters of an id that are shown: clients choose ids of any length.
MAX_ID_CHARS = 160


class RequestRow(msgspec.Struct, kw_only=True):
    """A request that has ended. Times in milliseconds; no text and no tokens."""

    #: Counts this router's requests; with several processes, those of one from a number of its own.
    number: int
    id: str
    #: Unix time of the end.
    ended_s: float
    outcome: str
    failed: bool
    tenant: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    queue_ms: float
    #: None without a first token, or if the time is unknown.
    ttft_ms: float | None
    itl_ms: float | None
    total_ms: float
    #: Name; empty if the decode worker computed the prompt, or if the worker is unknown.
    prefill: str
    #: Name; empty if the request was sent to no worker.
    decode: str
    connector: str
    transfer_bytes: int
    transfer_ms: float
    #: The peer from which a prefix was fetched.
    fetch_source: str
    fetch_bytes: int
    fetch_ms: float
    num_replays: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A row, with details that are sent on request only."""

    row: RequestRow
    timings: Timings | None
    #: None if it was refused before it was routed.
    why: Kept | None
    #: Whether another process has the details.
    is_elsewhere: bool = False


class RecentRequests:
    """A ring buffer of ended requests."""

    def __init__(
        self,
        max_requests: int = MAX_REQUESTS,
        *,
        first: int = 0,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Keep this number of requests. Numbers begin behind `first`."""
        self._first = first
        self._ring: deque[Ended] = deque(maxlen=max_requests)
        self._wall_clock = wall_clock
        self.num_ended = 0

    def add(self, end: RequestEnd) -> RequestRow:
        """Add a request that has ended; return its row."""
        self.num_ended += 1
        row = _row(end, self._first + self.num_ended, self._wall_clock())
        self._ring.append(Ended(row, end.timings, kept_part(end.request.trail)))
        return row

    def take(self, row: RequestRow) -> None:
        """Add a request that ended in another process."""
        self.num_ended += 1
        self._ring.append(Ended(row, None, None, is_elsewhere=True))

    def rows(self, after: int = 0) -> list[RequestRow]:
        """Return the kept rows without the first `after` of all, oldest first."""
        num_new = min(len(self._ring), max(0, self.num_ended - after))
        return [self._ring[place].row for place in range(-num_new, 0)]

    def find(self, number: int) -> Ended | None:
        """Return the request of this number; None if it is no longer kept."""
        return next((ended for ended in self._ring if ended.row.number == number), None)


def _row(end: RequestEnd, number: int, now_s: float) -> RequestRow:
    request, usage, timings = end.request, end.usage, end.timings or Timings()
    itl_ms = mean_itl_ms(end)
    return RequestRow(
        number=number,
        id=request.request_id[:MAX_ID_CHARS],
        ended_s=round(now_s, 3),
        outcome=end.outcome,
        failed=end.failed,
        tenant=request.tenant.name,
        model=request.model[:MAX_ID_CHARS],
        prompt_tokens=len(request.prompt_token_ids),
        completion_tokens=0 if usage is None else usage.completion_tokens,
        cached_tokens=0 if usage is None else usage.cached_tokens,
        queue_ms=round(timings.router_queue_ms, 2),
        ttft_ms=None if end.timings is None else round(timings.first_token_ms, 2),
        itl_ms=None if itl_ms is None else round(itl_ms, 2),
        total_ms=round(end.latency_s * 1000, 2),
        prefill=timings.prefill_worker,
        decode=timings.decode_worker or _sent_to(request.trail),
        connector=timings.connector,
        transfer_bytes=timings.transfer_bytes,
        transfer_ms=round(timings.transfer_ms, 2),
        fetch_source=timings.prefix_source,
        fetch_bytes=timings.prefix_fetch_bytes,
        fetch_ms=round(timings.prefix_fetch_ms, 2),
        num_replays=0 if usage is None else usage.num_replays,
    )


def _sent_to(trail: Trail) -> str:
    """Return the decode worker on the route of a request without timings; empty: none."""
    route = None if trail.decision is None else trail.decision.route
    return "" if route is None else route.decode.name
