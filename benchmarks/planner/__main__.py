"""`python -m benchmarks.planner`: worker-seconds and attainment, planned and fixed."""

from __future__ import annotations

import bisect
import json
import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path  # noqa: TC003 read at run time by typer
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.planner.hindsight import CountTable, Follower, lowest
from benchmarks.routing.traces import DATA
from cli.plan.advice import demand_of, fewest
from cli.plan.simulation import ClusterSimulation
from cli.plan.workload import Request, read_workload, wave
from services.router.planning.base import Bounds, Counts, Limits
from services.router.planning.counts import Pace
from services.router.planning.planner import Planner
from services.router.planning.speed import Speed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cli.plan.advice import Expected
    from cli.plan.simulation import Outcome

#: Both: 20,000 prompt tokens/s. One GPU's steps, and steps of a worker five times as slow.
FAST = Speed(prefill=(5, 50, 1), decode=(8, 0.05, 0.02), kv_tokens=1_000_000)
SLOW = Speed(prefill=(5, 50, 1), decode=(10, 0.5, 0.1), kv_tokens=400_000)
MAX_WORKERS = 60
CACHE_BLOCKS = 20_000
#: Divisions that are tried for each number of fixed workers.
NEAR = 7

app = typer.Typer(help=__doc__, add_completion=False)


@dataclass(frozen=True, slots=True)
class Case:
    """One workload on workers of one speed."""

    name: str
    requests: Sequence[Request]
    speed: Speed
    bounds: Bounds
    #: None: those that are best if they are fixed.
    start: Counts | None = None


@app.command()
def compare(
    startup_s: Annotated[list[float] | None, typer.Option(help="Of a worker.")] = None,
    only: Annotated[str, typer.Option(help="Cases whose names have this in them.")] = "",
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Also write the rows here.")
    ] = None,
) -> None:
    """Compare the planner with the fewest fixed workers with which 95 % meet the bounds.

    Fixed counts are found with hindsight: all near divisions of each number are tried. Planned
    workers count from their order on, so that their start costs, too.
    """
    table = Table("workload", "fixed P:D", "met %", "start-up s", "planner", "met %", "worker-s",
                  "counts changed", "moves", "peak")  # fmt: skip
    rows = []
    for case in _cases():
        if only not in case.name:
            continue
        fixed = _best_fixed(case)
        if fixed is None:
            typer.echo(f"{case.name}: {MAX_WORKERS} workers are not enough", err=True)
            continue
        fixed_s = (fixed.prefill + fixed.decode) * max(case.requests[-1].at_s, 1.0)
        for each in startup_s or (30.0, 60.0):
            for mode in ("counts", "counts+moves"):
                outcome = _planned(case, fixed, each, moves=mode != "counts")
                share = outcome.worker_s / fixed_s
                table.add_row(
                    case.name, f"{fixed.prefill}:{fixed.decode}", f"{100 * fixed.attainment:.1f}",
                    f"{each:.0f}", mode, f"{100 * outcome.attainment:.1f}", f"{share:.2f} x",
                    str(outcome.num_changes), str(outcome.num_moves), str(outcome.peak),
                )  # fmt: skip
                rows.append(
                    {
                        "workload": case.name,
                        "fixed": [fixed.prefill, fixed.decode],
                        "fixed_met": fixed.attainment,
                        "startup_s": each,
                        "mode": mode,
                        "met": outcome.attainment,
                        "worker_s": share,
                        "moves": outcome.num_moves,
                        "peak": outcome.peak,
                    }
                )
        table.add_section()
    Console(width=130).print(table)
    if json_path is not None:
        json_path.write_text(json.dumps(rows, indent=1), encoding="utf-8")


@app.command()
def hindsight(
    segment_s: Annotated[float, typer.Option(min=1, help="Counts may change so often.")] = 120.0,
    startup_s: Annotated[float, typer.Option(help="Of a worker.")] = 30.0,
    only: Annotated[str, typer.Option(help="Cases whose names have this in them.")] = "",
) -> None:
    """Search the fewest worker-seconds of any table of counts, knowing all requests. Minutes."""
    for case in _cases():
        fixed = _best_fixed(case) if only in case.name else None
        if fixed is None:
            continue
        span_s = max(case.requests[-1].at_s, 1.0)
        counts = Counts(fixed.prefill, fixed.decode)
        start = CountTable((counts,) * math.ceil(span_s / segment_s), segment_s)
        table, outcome = lowest(start, partial(_followed, case, startup_s))
        share = outcome.worker_s / (counts.total * span_s)
        typer.echo(
            f"{case.name}: {share:.2f} x the worker-seconds of {counts.prefill}:{counts.decode}, "
            f"{100 * outcome.attainment:.1f} % met; "
            + " ".join(f"{each.prefill}:{each.decode}" for each in table.counts)
        )


def _followed(case: Case, startup_s: float, table: CountTable) -> Outcome:
    follower = Follower(case.bounds, table, startup_s=startup_s)
    return ClusterSimulation(
        case.speed, case.bounds, table.counts[0], planner=follower, startup_s=startup_s
    ).run(case.requests)


@app.command()
def shift(
    num_workers: Annotated[int, typer.Option(help="Of both kinds together, fixed.")] = 6,
    period_s: Annotated[float, typer.Option(help="From one kind of requests to the other.")] = 300,
) -> None:
    """Moves alone: a fixed number of workers, long prompts and long answers by turns."""
    requests = _by_turns(num_workers, period_s)
    bounds = Bounds(max_ttft_ms=2000, max_itl_ms=40)
    table = Table("workers", "met %", "goodput/s", "moves")
    for prefill in range(1, num_workers):
        counts = Counts(prefill, num_workers - prefill)
        outcome = ClusterSimulation(FAST, bounds, counts).run(requests)
        table.add_row(f"fixed {prefill}:{num_workers - prefill}", *_numbers(outcome))
    planner = Planner(bounds, Limits(max_workers=num_workers))
    half = Counts(num_workers // 2, num_workers - num_workers // 2)
    outcome = ClusterSimulation(FAST, bounds, half, planner=planner, scales=False).run(requests)
    table.add_row("moved", *_numbers(outcome))
    Console(width=100).print(table)


def _numbers(outcome: Outcome) -> tuple[str, str, str]:
    attained = f"{100 * outcome.attainment:.1f}"
    return attained, f"{outcome.goodput_per_s:.2f}", str(outcome.num_moves)


def _by_turns(num_workers: int, period_s: float) -> list[Request]:
    """Return four turns: prompts of 8000 tokens with short answers, then the opposite."""
    found: list[Request] = []
    for turn in range(4):
        prefills = turn % 2 == 0
        rate = num_workers * (1.4 if prefills else 2.0)
        part = wave(
            low_per_s=rate, high_per_s=rate, period_s=period_s, duration_s=period_s,
            num_tokens=8000 if prefills else 1000, num_output_tokens=100 if prefills else 1500,
            seed=turn,
        )  # fmt: skip
        found += [replace(each, at_s=each.at_s + turn * period_s) for each in part]
    return found


def _cases() -> list[Case]:
    sine = wave(low_per_s=1, high_per_s=8, period_s=900, duration_s=900,
                num_tokens=8000, num_output_tokens=1000)  # fmt: skip
    tight = Bounds(max_ttft_ms=2000, max_itl_ms=40)
    loose = Bounds(max_ttft_ms=8000, max_itl_ms=40)
    found = [
        Case("sinusoid, fast", sine, FAST, tight, Counts(1, 1)),
        Case("sinusoid, slow", sine, SLOW, tight, Counts(2, 3)),
    ]
    for name in ("conversation", "synthetic"):
        trace = read_workload(DATA / f"{name}_trace.jsonl.xz", num_blocks=CACHE_BLOCKS)
        fourfold = [replace(each, at_s=each.at_s / 4) for each in trace]
        found += [
            Case(name, trace, FAST, loose),
            Case(f"{name}, 4 x as fast", fourfold, FAST, loose),
            Case(f"{name}, 2 x, 1:8", _swung(trace, 2, 8), FAST, loose, Counts(1, 1)),
        ]
    return found


def _swung(trace: Sequence[Request], faster: float, ratio: float) -> list[Request]:
    """Return the trace in a fraction of its time, at a rate that swings once by `ratio`."""
    span_s = trace[-1].at_s / faster
    num_points = 2000
    passed = [0.0]
    for i in range(num_points):
        share = (1 - math.cos(2 * math.pi * (i + 0.5) / num_points)) / 2
        passed.append(passed[-1] + 1 + (ratio - 1) * share)
    found = []
    for each in trace:
        wanted = each.at_s / faster / span_s * passed[-1]
        place = min(bisect.bisect_right(passed, wanted) - 1, num_points - 1)
        within = (wanted - passed[place]) / (passed[place + 1] - passed[place])
        found.append(replace(each, at_s=(place + within) / num_points * span_s))
    return found


def _best_fixed(case: Case) -> Expected | None:
    demand = demand_of(case.requests, case.speed, case.bounds)
    return fewest(case.requests, case.speed, case.bounds, demand, MAX_WORKERS, near=NEAR)


def _planned(case: Case, fixed: Expected, startup_s: float, *, moves: bool) -> Outcome:
    planner = Planner(
        case.bounds,
        Limits(max_workers=MAX_WORKERS),
        pace=Pace(startup_s=startup_s, cooldown_s=startup_s),
    )
    start = case.start or Counts(fixed.prefill, fixed.decode)
    return ClusterSimulation(
        case.speed, case.bounds, start, planner=planner, moves=moves, startup_s=startup_s
    ).run(case.requests)


if __name__ == "__main__":
    app()
