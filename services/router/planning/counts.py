"""The slow loop: how many workers of each kind are wanted, by what is expected to come."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from services.router.planning.base import Counts
from services.router.planning.capacity import Capacity
from services.router.planning.forecast import Forecast
from shared.identity import Role

if TYPE_CHECKING:
    from services.router.planning.base import Bounds, Limits, Observation
    from services.router.planning.speed import Speed

#: A worker is given back only if the others bear the load times this.
DOWN_MARGIN = 1.1
#: Most workers of a kind that one decision adds or gives back: this share of those there are, and
#: at least 2 more, or 1 less.
UP_SHARE, DOWN_SHARE = 0.5, 0.25
#: Without a request for this time no worker is wanted, if the limits allow none.
IDLE_S = 120.0
ROLES = (Role.PREFILL, Role.DECODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast counts may change."""

    #: From the order of a worker to its first request.
    startup_s: float = 60.0
    #: From a change of a kind's count to its next lower one.
    cooldown_s: float = 60.0


class CountPlanner:
    """Says how many workers are wanted. Keeps forecasts; `look` is called once per interval."""

    def __init__(self, limits: Limits, pace: Pace) -> None:
        self._limits = limits
        self._pace = pace
        self._rate = Forecast()
        self._wanted: Counts | None = None
        self._changed_s = dict.fromkeys(ROLES, -math.inf)
        self._asked_s = 0.0

    def begin(self, wanted: Counts, now_s: float) -> Counts:
        """Begin with these workers, as far as the limits allow, and return them.

        Means of few requests are no reason for fewer of them.
        """
        self._changed_s = dict.fromkeys(ROLES, now_s)
        self._wanted = fit(wanted, self._limits)
        # Where there is none, none is missed until a request comes.
        self._asked_s = now_s if self._wanted.total else -math.inf
        return self._wanted

    def look(self, seen: Observation, speed: Speed, bounds: Bounds) -> tuple[Counts, float, str]:
        """Return the wanted counts, the rate they are for, and why."""
        now_s, demand = seen.now_s, seen.demand
        self._rate.note(demand.requests_per_s, now_s)
        present = self._wanted
        if present is None:
            present = self.begin(seen.counts, now_s)
        if demand.requests_per_s > 0 or seen.num_waiting or seen.backlog_ms > 0:
            self._asked_s = now_s
        planned = max(self._rate.level, self._rate.after(self._pace.startup_s))
        if self._is_idle(now_s):
            return self._change(Counts(0, 0), now_s), 0.0, f"no request for {IDLE_S:.0f} s"
        needed = self._needed(planned, seen, speed, bounds)
        enough = self._needed(planned * DOWN_MARGIN, seen, speed, bounds)
        changed = Counts(
            *(
                self._next(present.of(r), needed.of(r), enough.of(r), self._rests(r, now_s))
                for r in ROLES
            )
        )
        wanted = self._change(fit(changed, self._limits), now_s)
        return wanted, planned, f"{planned:.2f} requests/s need {_text(needed)}"

    def _rests(self, role: Role, now_s: float) -> bool:
        return now_s - self._changed_s[role] < self._pace.cooldown_s

    def _next(self, present: int, needed: int, enough: int, rests: bool) -> int:
        if needed > present:
            return min(needed, present + max(2, int(present * UP_SHARE)))
        if enough < present and not rests:
            return max(enough, present - max(1, int(present * DOWN_SHARE)))
        return present

    def _is_idle(self, now_s: float) -> bool:
        limits = self._limits
        return not limits.min_prefill + limits.min_decode and now_s - self._asked_s >= IDLE_S

    def _needed(self, per_s: float, seen: Observation, speed: Speed, bounds: Bounds) -> Counts:
        """Return what is needed for a rate. Workers that were ordered and come count as help."""
        capacity = Capacity(speed, bounds, replace(seen.demand, requests_per_s=per_s))
        come = self._wanted is not None and self._wanted.prefill > seen.counts.prefill
        backlog_ms = 0.0 if come else seen.backlog_ms
        num_running = sum(worker.num_running for worker in seen.workers)
        return Counts(
            max(1, capacity.num_prefill(backlog_ms)), max(1, capacity.num_decode(num_running))
        )

    def _change(self, wanted: Counts, now_s: float) -> Counts:
        before = self._wanted or wanted
        for role in ROLES:
            if wanted.of(role) != before.of(role):
                self._changed_s[role] = now_s
        self._wanted = wanted
        return wanted


def fit(wanted: Counts, limits: Limits) -> Counts:
    """Return counts within the limits; of too many each kind keeps its share."""
    prefill = max(wanted.prefill, limits.min_prefill)
    decode = max(wanted.decode, limits.min_decode)
    budget = max(limits.max_workers, limits.min_prefill + limits.min_decode)
    if prefill + decode <= budget:
        return Counts(prefill, decode)
    share = round(budget * prefill / (prefill + decode))
    # A kind that is wanted keeps one worker.
    least = max(limits.min_prefill, 1)
    most = budget - max(limits.min_decode, 1)
    prefill = min(max(share, least), max(most, limits.min_prefill))
    return Counts(prefill, budget - prefill)


def _text(counts: Counts) -> str:
    return f"{counts.prefill} for prefill and {counts.decode} for decode"
