"""How to divide workers, and what one more buys: every division is simulated."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from cli.plan.simulation import ClusterSimulation
from services.router.planning.base import ATTAINMENT, Counts, Demand
from services.router.planning.capacity import Capacity
from services.router.planning.meter import DemandMeter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cli.plan.simulation import Outcome
    from cli.plan.workload import Request
    from services.router.planning.base import Bounds
    from services.router.planning.speed import Speed

#: Divisions of each number of workers that are tried for the fewest that are enough.
NEAR = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a division of workers gives. Times in milliseconds."""

    prefill: int
    decode: int
    ttft_p50_ms: float
    ttft_p95_ms: float
    itl_mean_ms: float
    itl_p95_ms: float
    #: Share of requests that meet the bounds, and those of them per second.
    attainment: float
    goodput_per_s: float
    #: Requests that have their answer within an hour after the last one came.
    answered: float

    @property
    def order(self) -> tuple[float, ...]:
        """Sorts divisions, the best first: by what meets the bounds, then by waiting."""
        waiting_ms = self.ttft_p50_ms + self.ttft_p95_ms + 100 * self.itl_mean_ms
        return -round(self.attainment, 2), -round(self.answered, 2), waiting_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to do."""

    demand: Demand
    #: All divisions of the workers there are, by their prefill workers.
    divisions: list[Expected]
    best: Expected
    #: With one worker more.
    more_prefill: Expected
    more_decode: Expected
    #: The fewest workers with which enough requests meet the bounds; None: there are no bounds,
    #: or not even `most_tried` workers are enough.
    enough: Expected | None
    most_tried: int
    warnings: list[str]


def advise(requests: Sequence[Request], speed: Speed, bounds: Bounds, num_workers: int) -> Advice:
    """Simulate all divisions of `num_workers`, at least 2, and those of one more."""

    def expected(prefill: int, decode: int) -> Expected:
        outcome = ClusterSimulation(speed, bounds, Counts(prefill, decode)).run(requests)
        return _expected(prefill, decode, outcome, len(requests))

    demand = demand_of(requests, speed, bounds)
    divisions = [expected(n, num_workers - n) for n in range(1, num_workers)]
    best = min(divisions, key=lambda each: each.order)
    bounded = bounds.max_ttft_ms is not None or bounds.max_itl_ms is not None
    most = 2 * num_workers + 8
    return Advice(
        demand=demand,
        divisions=divisions,
        best=best,
        more_prefill=expected(best.prefill + 1, best.decode),
        more_decode=expected(best.prefill, best.decode + 1),
        enough=fewest(requests, speed, bounds, demand, most) if bounded else None,
        most_tried=most,
        warnings=Capacity(speed, bounds, demand).warnings,
    )


def demand_of(requests: Sequence[Request], speed: Speed, bounds: Bounds) -> Demand:
    """Return the mean demand of a workload."""
    now_s = 0.0
    forever_s = 1e12
    meter = DemandMeter(max_ttft_ms=bounds.max_ttft_ms, window_s=forever_s, clock=lambda: now_s)
    for request in requests:
        meter.arrived(request.num_tokens)
        meter.routed(request.num_held, speed.prefill_ms(request.num_tokens, request.num_held))
        meter.ended(request.num_output_tokens)
    now_s = max(requests[-1].at_s, 1.0)
    return meter.take()


def fewest(
    requests: Sequence[Request],
    speed: Speed,
    bounds: Bounds,
    demand: Demand,
    most: int,
    *,
    near: int = NEAR,
) -> Expected | None:
    """Return the smallest division that is enough, from an estimate on; `near`: see NEAR."""
    capacity = Capacity(speed, bounds, demand)
    total = max(2, (capacity.num_prefill() + capacity.num_decode()) * 3 // 4)
    while total <= most:
        shares = range(1, total)
        # Divisions far from the estimated one cannot be the best.
        nearest = sorted(shares, key=lambda n: capacity.pressure(Counts(n, total - n)).most)
        for prefill in nearest[:near]:
            outcome = ClusterSimulation(speed, bounds, Counts(prefill, total - prefill)).run(
                requests
            )
            if outcome.attainment >= ATTAINMENT:
                return _expected(prefill, total - prefill, outcome, len(requests))
        total += 1
    return None


def _expected(prefill: int, decode: int, outcome: Outcome, num_requests: int) -> Expected:
    return Expected(
        prefill=prefill,
        decode=decode,
        ttft_p50_ms=_percentile(outcome.ttft_ms, 0.5),
        ttft_p95_ms=_percentile(outcome.ttft_ms, 0.95),
        itl_mean_ms=fmean(outcome.itl_ms) if outcome.itl_ms else 0.0,
        itl_p95_ms=_percentile(outcome.itl_ms, 0.95),
        attainment=outcome.attainment,
        goodput_per_s=outcome.goodput_per_s,
        answered=len(outcome.ttft_ms) / max(1, num_requests),
    )


def _percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
