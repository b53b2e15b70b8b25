"""The whole state of the page, collected from requests and workers. Knows no HTTP."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from services.router.dashboard.history import STEP_S, Gauges, History, Minute, Point
from services.router.dashboard.links import LinkRow, Links
from services.router.dashboard.reason import Why, why
from services.router.dashboard.recent import RecentRequests, RequestRow
from services.router.dashboard.together import Numbers, PagesTogether, SharedEnd
from services.router.dashboard.workers import WorkerChange, WorkerRow, WorkerWatch
from services.router.planner.shown import ShownDecision  # noqa: TC001 read by msgspec
from services.router.usage import Timings, Usage
from services.router.watch.metrics import TokenMetrics
from shared.identity import Role

if TYPE_CHECKING:
    from services.router.parts import RouterParts
    from services.router.processes.process import RouterProcess
    from services.router.request.generation import AnswerPiece, GenerationRequest
    from services.router.watch.observer import RequestEnd, RequestWatch

#: Number of requests per message, so that a message stays small.
MAX_ROWS = 50
#: Of a planner, in each message.
MAX_DECISIONS = 8
ROLES = (Role.PREFILL, Role.DECODE)


class Totals(msgspec.Struct, kw_only=True):
    """Totals of this router, now and since its start, or that of the process that shows them."""

    num_running: int
    num_queued: int
    num_queued_tokens: int
    num_ended: int
    num_replays: int


class Tick(msgspec.Struct, kw_only=True):
    """The message that a page gets every second. Lists hold what is new since the tick before."""

    number: int
    now_s: float
    totals: Totals
    minute: Minute
    workers: list[WorkerRow]
    links: list[LinkRow]
    points: list[Point]
    requests: list[RequestRow]
    changes: list[WorkerChange]
    #: Of each model that is planned.
    plans: list[PlanRow]


class PlanRow(msgspec.Struct, kw_only=True):
    """What the planner of one model says."""

    model: str
    acts: bool
    #: The router that decides; empty: none has yet.
    leader: str
    num_moves: int
    #: The newest ones, the last one last.
    decisions: list[ShownDecision]


class About(msgspec.Struct, kw_only=True):
    """Facts that do not change while the router runs."""

    name: str
    version: str
    policy: str
    models: list[str]
    started_s: float
    step_s: int = STEP_S


class Hello(msgspec.Struct, kw_only=True):
    """The first message to a page, also after it missed a tick: a tick with complete lists."""

    about: About
    tick: Tick


class RequestDetail(msgspec.Struct, kw_only=True):
    """One request with all details."""

    row: RequestRow
    timings: Timings | None
    why: Why | None


class _Shown:
    """A RequestWatch for the page: it records the first token and the end."""

    def __init__(self, state: DashboardState, began_s: float) -> None:
        self._state = state
        self._began_s = began_s
        self._has_begun = False

    def piece(self, piece: AnswerPiece, now_s: float) -> None:
        if not self._has_begun and piece.token_ids:
            self._has_begun = True
            self._state.first_token(now_s - self._began_s)

    def ended(self, end: RequestEnd) -> None:
        self._state.ended(end)


class DashboardState:
    """The RequestObserver behind the page; see services/router/watch/observer.py."""

    def __init__(
        self,
        parts: RouterParts,
        *,
        name: str,
        version: str,
        process: RouterProcess | None = None,
    ) -> None:
        """Make an empty state. `name` distinguishes this router from others of its cluster.

        `process`: this one, if the router has several.
        """
        self._parts = parts
        self._together = None
        if process is not None:
            self._together = PagesTogether(
                process,
                name,
                on_first_token=lambda ttft_s: self._history.first_token(ttft_s),
                on_end=self._take_end,
                detail=self._own_detail,
            )
        self.tokens = TokenMetrics()
        self._history = History()
        first = 0 if process is None else PagesTogether.first_number()
        self._recent = RecentRequests(first=first)
        self._links = Links()
        self._workers = WorkerWatch(
            lambda: (e for p in parts.pools for role in ROLES for e in p.endpoints.of_role(role)),
            parts.index.num_device_blocks,
        )
        self._about = About(
            name=name,
            version=version,
            policy=", ".join(dict.fromkeys(p.parts.chooser.policy.name for p in parts.pools)),
            models=parts.model_names,
            started_s=round(time.time(), 3),
        )
        self._number = 0
        self._told_requests = self._told_changes = 0

    def began(
        self, request: GenerationRequest, began_s: float
    ) -> tuple[GenerationRequest, RequestWatch]:
        """See RequestObserver."""
        return request, _Shown(self, began_s)

    def first_token(self, ttft_s: float) -> None:
        """Record the time to a request's first token."""
        self._history.first_token(ttft_s)
        if self._together is not None:
            self._together.first_token(ttft_s)

    def ended(self, end: RequestEnd) -> None:
        """Record the end of a request."""
        self._history.ended(end)
        row = self._recent.add(end)
        if end.usage is not None:
            self._links.add(row)
            self._workers.ended(row, end.usage)
        if self._together is not None:
            hits = end.usage or Usage()
            self._together.ended(
                SharedEnd(
                    row=row,
                    complete=end.usage is not None,
                    transferred_hit_tokens=hits.transferred_hit_tokens,
                    local_hit_tokens=hits.local_hit_tokens,
                )
            )

    def look(self) -> None:
        """Record the values of the charts. Call it once a second, with or without viewers."""
        self._workers.look()
        numbers = self._own_numbers()
        if self._together is not None:
            numbers = self._together.exchange(numbers)
        self._history.look(
            Gauges(
                num_running=numbers.num_running,
                num_queued=numbers.num_queued,
                kv_used=self._workers.kv_used(),
                num_tokens=numbers.num_tokens,
                num_gaps=numbers.num_gaps,
                gaps_s=numbers.gaps_s,
                num_replays=numbers.num_replays,
            )
        )

    def tick(self) -> Tick:
        """Return what is new since the last tick. Call it at most once a second."""
        self._number += 1
        tick = self._tick(self._told_requests, self._told_changes, self._history.newest())
        self._told_requests = self._recent.num_ended
        self._told_changes = self._workers.num_changes
        return tick

    def hello(self) -> Hello:
        """Return the full state. The next tick continues it, or repeats a part."""
        return Hello(about=self._about, tick=self._tick(0, 0, self._history.points()))

    async def find(self, number: int) -> bytes | None:
        """Return one of the recent requests as JSON, also of another process; None if it is gone.

        Raises:
            UnavailableError: the other processes cannot be asked.
        """
        detail = self._own_detail(number)
        if detail is None and self._together is not None:
            detail = await self._together.find(number)
        return detail

    def detail(self, number: int) -> RequestDetail | None:
        """Return one of the recent requests of this process; None if it is no longer kept."""
        ended = self._recent.find(number)
        if ended is None or ended.is_elsewhere:
            return None
        return RequestDetail(
            row=ended.row,
            timings=ended.timings,
            why=None if ended.why is None else why(ended.why),
        )

    def _totals(self) -> Totals:
        """Return the sums over all models, and all processes."""
        numbers = self._own_numbers()
        if self._together is not None:
            numbers = self._together.whole(numbers)
        return Totals(
            num_running=numbers.num_running,
            num_queued=numbers.num_queued,
            num_queued_tokens=numbers.num_queued_tokens,
            num_ended=self._recent.num_ended,
            num_replays=numbers.num_replays,
        )

    def _own_numbers(self) -> Numbers:
        pools = self._parts.pools
        num_gaps, gaps_s = self.tokens.gaps
        return Numbers(
            num_running=sum(pool.admission.num_inside for pool in pools),
            num_queued=sum(pool.num_waiting for pool in pools),
            num_queued_tokens=sum(pool.admission.num_queued_tokens for pool in pools),
            num_tokens=self.tokens.num_tokens,
            num_gaps=num_gaps,
            gaps_s=gaps_s,
            num_replays=sum(pool.replays.total() for pool in pools),
        )

    def _own_detail(self, number: int) -> bytes | None:
        detail = self.detail(number)
        return None if detail is None else to_json(detail)

    def _take_end(self, end: SharedEnd) -> None:
        """Record the end of a request of another process."""
        row = end.row
        self._recent.take(row)
        self._history.count(
            failed=row.failed,
            num_prompt_tokens=row.prompt_tokens if end.complete else 0,
            num_cached_tokens=row.cached_tokens,
            itl_ms=row.itl_ms,
        )
        if end.complete:
            self._links.add(row)
            self._workers.hit(row, prefill=end.transferred_hit_tokens, decode=end.local_hit_tokens)

    def _tick(self, after_request: int, after_change: int, points: list[Point]) -> Tick:
        return Tick(
            number=self._number,
            now_s=round(time.time(), 3),
            totals=self._totals(),
            minute=self._history.minute(),
            workers=self._workers.rows(),
            links=self._links.rows(),
            points=points,
            requests=self._recent.rows(after_request)[-MAX_ROWS:],
            changes=self._workers.changes(after_change),
            plans=self._plans(),
        )

    def _plans(self) -> list[PlanRow]:
        found = (pool.parts.planner for pool in self._parts.pools)
        return [
            PlanRow(
                model=loop.plan.model,
                acts=loop.plan.acts,
                leader=loop.leader,
                num_moves=loop.num_moves,
                decisions=list(loop.decisions)[-MAX_DECISIONS:],
            )
            for loop in found
            if loop is not None
        ]


def to_json(message: Any) -> bytes:
    """Return a message as JSON for the page."""
    return _ENCODER.encode(message)


_ENCODER = msgspec.json.Encoder()
