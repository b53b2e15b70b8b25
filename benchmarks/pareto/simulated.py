"""A cell on simulated workers, behind the real chooser: see `benchmarks/routing/mixed.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.pareto.measures import columns, goodput
from benchmarks.pareto.results import Places, Row
from benchmarks.routing.mixed import MixedSimulation
from benchmarks.routing.step_time import DEVICE, StepTime
from benchmarks.routing.workloads import Scale, arrivals
from services.router.routing.places.mode import PlacementMode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.pareto.choice import Case, Choice
    from benchmarks.pareto.results import Results, Slo
    from benchmarks.routing.traces import Arrival


def capacity_ms(num_workers: int) -> float:
    """Milliseconds of work that are done in a second: the time of all workers. A request's work is
    its share of a step in a batch of 16, without hits.
    """
    return num_workers * 1000.0


def simulate_all(
    choice: Choice,
    results: Results,
    path: Path,
    *,
    num_workers: int,
    advance: Callable[[], None],
    time: StepTime = DEVICE,
) -> None:
    """Simulate the cells that are missing, and keep each in the file; `advance` after each.

    `time`: of the workers; requests have the sizes of the choice.
    """
    for case, system in results.left(choice.turns()):
        row = simulate(case, system, choice, num_workers=num_workers, slo=results.slo, time=time)
        results.rows.append(row)
        results.save(path)
        advance()


def simulate(
    case: Case, system: str, choice: Choice, *, num_workers: int, slo: Slo, time: StepTime = DEVICE
) -> Row:
    """Run one cell by a simulated clock: the same numbers every time."""
    mode, span_s = PlacementMode(system), choice.span_s
    rate_ms = case.load * capacity_ms(num_workers)
    scale = choice.scale(case.workload) if choice.size != 1.0 else Scale()
    coming = arrivals(
        case.workload,
        rate_ms=rate_ms,
        span_s=span_s,
        work_ms=time.work_ms,
        seed=case.seed,
        scale=scale,
    )
    num_prefill = 0 if mode is PlacementMode.AGGREGATED else num_workers // 2
    simulation = MixedSimulation(
        mode,
        num_prefill=num_prefill,
        num_decode=num_workers - num_prefill,
        block_size=scale.block_size,
        time=time,
        seed=case.seed,
    )
    outcome = simulation.run(coming)
    took_s = (outcome.end_ms / 1000) - coming[0].at_s
    return Row(
        workload=case.workload,
        load=case.load,
        system=system,
        repetition=case.repetition,
        num_requests=len(coming),
        num_failed=0,
        offered=_offered(coming, time, rate_ms, span_s) * case.load,
        **columns(outcome.ttft_ms, outcome.gaps_ms),
        goodput=goodput(outcome.ttft_ms, outcome.itl_ms, len(coming), slo),
        tokens_per_s=sum(a.num_output_tokens for a in coming) / took_s,
        took_s=took_s,
        places=Places(
            here=outcome.num_here, handed_over=outcome.num_handed_over, split=outcome.num_split
        ),
    )


def _offered(coming: list[Arrival], time: StepTime, rate_ms: float, span_s: float) -> float:
    return sum(map(time.work_ms, coming)) / (rate_ms * span_s)
