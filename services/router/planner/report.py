"""What one router knows of a model's load, and the sum of what all routers know."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from services.router.planning.base import Demand, Observation, WorkerState
from services.router.planning.speed import Speed  # noqa: TC001 read at run time by msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from services.router.workers.endpoint import Endpoint


class WorkerWork(msgspec.Struct, frozen=True, array_like=True):
    """A worker's unfinished work that came from one router."""

    queue_ms: float
    num_running: int
    num_held_tokens: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What one router knows."""

    demand: Demand
    speed: Speed
    #: Prompts by which the speed was measured.
    num_measurements: int
    waiting_ms: float
    num_waiting: int
    #: By str(WorkerId).
    work: dict[str, WorkerWork]


def together(
    reports: Sequence[Report], endpoints: Iterable[Endpoint], *, now_s: float
) -> tuple[Observation, Speed]:
    """Return the sum of all routers' reports, and the speed that is known best.

    The workers are those that the caller's own directory has; there is at least one report.
    """
    states = []
    for endpoint in endpoints:
        name = str(endpoint.record.worker)
        work = [report.work[name] for report in reports if name in report.work]
        states.append(
            WorkerState(
                worker=endpoint.record.worker,
                preference=endpoint.preference,
                queue_ms=sum(each.queue_ms for each in work),
                num_running=sum(each.num_running for each in work),
                num_held_tokens=sum(each.num_held_tokens for each in work),
                movable=len(endpoint.record.served) > 1,
            )
        )
    seen = Observation(
        now_s=now_s,
        demand=_sum([report.demand for report in reports]),
        workers=states,
        waiting_ms=sum(report.waiting_ms for report in reports),
        num_waiting=sum(report.num_waiting for report in reports),
    )
    return seen, max(reports, key=lambda report: report.num_measurements).speed


def _sum(demands: Sequence[Demand]) -> Demand:
    """Return the demand of all routers: rates are added, means weighted by them."""
    rate = sum(demand.requests_per_s for demand in demands)
    if rate <= 0:
        # The one that has seen the largest requests lately.
        return max(demands, key=lambda demand: demand.prompt_tokens)

    def mean(name: str) -> float:
        total = sum(getattr(each, name) * each.requests_per_s for each in demands)
        return float(total / rate)

    return Demand(
        requests_per_s=rate,
        prompt_tokens=mean("prompt_tokens"),
        held_tokens=mean("held_tokens"),
        output_tokens=mean("output_tokens"),
        prompt_ms=mean("prompt_ms"),
        variation=mean("variation"),
        hopeless=mean("hopeless"),
    )
