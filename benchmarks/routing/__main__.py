"""`python -m benchmarks.routing simulate`."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.routing.cluster import AdapterMemory, Result, ServiceTime, Simulation
from benchmarks.routing.mixed import MixedSimulation
from benchmarks.routing.outcome import Outcome, percentile
from benchmarks.routing.step_time import StepTime
from benchmarks.routing.traces import NAMES, at_rate, hot_prefix, read_trace, zipf_adapters
from benchmarks.routing.workloads import BLOCK_SIZE as MIXED_BLOCK_SIZE
from benchmarks.routing.workloads import WORKLOADS, arrivals
from services.router.routing.places.mode import PlacementMode

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.routing.traces import Arrival

POLICIES = ("cost", "cache-first", "least-loaded", "round-robin", "random")
HOT = "hot prefix"

app = typer.Typer(help=__doc__, add_completion=False)


@app.callback()
def routing() -> None:
    """Measure ways to choose a worker."""


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table, less the policy."""

    trace: str
    num_workers: int
    offered: float


@app.command()
def simulate(
    policy: Annotated[list[str] | None, typer.Option(help="Policies, default: all.")] = None,
    num_requests: Annotated[int | None, typer.Option(help="Of each trace; default: all.")] = None,
    num_blocks: Annotated[int, typer.Option(help="Of 512 tokens in each worker's cache.")] = 2000,
    seeds: Annotated[int, typer.Option(help="Runs of each line; ties are broken by chance.")] = 3,
) -> None:
    """Time to first token of every policy on Mooncake's traces, by a simulated clock.

    Offered load: the work of all requests if no cache ever hit, over the time in which they come
    and the number of workers. At 1.1, who finds nothing cannot keep up.
    """
    policies = policy or list(POLICIES)
    service = ServiceTime()
    traces = {name: read_trace(name, num_requests) for name in NAMES}
    cases = [Case(name, n, load) for name in NAMES for n in (4, 8) for load in (0.9, 1.1)]
    traces[HOT] = hot_prefix(num_requests=num_requests or 4000)
    cases.append(Case(HOT, 8, 0.9))
    table = Table(
        "trace", "workers", "offered", "policy", "mean TTFT s", "p50", "p90", "p99", "hits %",
        "busiest / mean",
        title=f"Prefill workers with {num_blocks} blocks of 512 tokens, mean of {seeds} runs",
    )  # fmt: skip
    with Progress(console=Console(stderr=True)) as progress:
        total = sum(len(traces[case.trace]) for case in cases) * len(policies) * seeds
        task = progress.add_task("simulating", total=total)
        for case in cases:
            trace = traces[case.trace]
            work_s = service.no_cache_s(trace) / case.offered
            coming = at_rate(trace, work_s, case.num_workers)
            for name in policies:
                results = _runs(
                    name, case, coming, num_blocks, seeds, lambda: progress.advance(task)
                )
                table.add_row(case.trace, str(case.num_workers), f"{case.offered}", name,
                              *_columns(results))  # fmt: skip
            table.add_section()
    Console(width=120).print(table)


@app.command()
def adapters(
    policy: Annotated[list[str] | None, typer.Option(help="Policies, default: two.")] = None,
    num_requests: Annotated[int, typer.Option(help="Of the trace.")] = 6000,
    num_workers: Annotated[int, typer.Option(help="Prefill workers.")] = 8,
    load_ms: Annotated[float, typer.Option(help="To load an adapter.")] = 300.0,
    seeds: Annotated[int, typer.Option(help="Traces.")] = 3,
) -> None:
    """Loads and time to first token with 100 adapters, asked for by Zipf's law.

    Offered load: the work of all prompts, without loads, over the time and the number of workers.
    """
    table = Table(
        "adapters held", "offered", "policy", "loads", "mean TTFT ms", "p50", "p99",
        "busiest / mean", title=f"{num_workers} workers, mean of {seeds} traces",
    )  # fmt: skip
    service = ServiceTime()
    for num_adapters in (8, 16, 32):
        for offered in (0.3, 0.7):
            for name in policy or ("least-loaded", "cost"):
                results = []
                for seed in range(seeds):
                    trace = zipf_adapters(num_requests=num_requests, seed=seed)
                    coming = at_rate(trace, service.no_cache_s(trace) / offered, num_workers)
                    memory = AdapterMemory(num_adapters, load_ms)
                    simulation = Simulation(
                        name, num_workers=num_workers, adapters=memory, seed=seed
                    )
                    results.append(simulation.run(coming))
                milliseconds = [fmean(r.mean_ms for r in results)]
                milliseconds += [fmean(r.percentile_ms(p) for r in results) for p in (0.5, 0.99)]
                table.add_row(str(num_adapters), f"{offered}", name,
                              f"{fmean(r.num_loads for r in results):.0f}",
                              *(f"{ms:.0f}" for ms in milliseconds),
                              f"{fmean(r.peak_load for r in results):.2f}")  # fmt: skip
        table.add_section()
    Console(width=120).print(table)


@app.command()
def places(
    workload: Annotated[list[str] | None, typer.Option(help="Default: all.")] = None,
    load: Annotated[list[float] | None, typer.Option(help="Of capacity; default: five.")] = None,
    num_workers: Annotated[int, typer.Option(help="In all.")] = 4,
    span_s: Annotated[float, typer.Option(help="Simulated seconds of arrivals.")] = 240.0,
    seed: Annotated[int, typer.Option(help="Of arrivals and ties.")] = 1,
) -> None:
    """Elastic placement beside a fixed half of prefill workers, and beside aggregated workers.

    Capacity: the time of all workers, with a request's share of a step in a batch of 16 as its
    work, and no hits. Good: within 1 s to the first token and 30 ms between tokens on average.
    """
    table = Table(
        "workload", "load", "placement", "mean TTFT ms", "p99", "mean ITL ms", "p99", "good %",
        "here %", "split %", title=f"{num_workers} workers, {span_s:.0f} s of arrivals",
    )  # fmt: skip
    time, half = StepTime(), num_workers // 2
    shapes = {
        PlacementMode.AGGREGATED: (0, num_workers),
        PlacementMode.DISAGGREGATED: (half, num_workers - half),
        PlacementMode.ELASTIC: (half, num_workers - half),
    }
    for name in workload or list(WORKLOADS):
        for part in load or (0.1, 0.3, 0.6, 0.9, 1.2):
            coming = arrivals(
                name,
                rate_ms=part * num_workers * 1000,
                span_s=span_s,
                work_ms=time.work_ms,
                seed=seed,
            )
            for mode, (num_prefill, num_decode) in shapes.items():
                simulation = MixedSimulation(
                    mode,
                    num_prefill=num_prefill,
                    num_decode=num_decode,
                    block_size=MIXED_BLOCK_SIZE,
                    time=time,
                    seed=seed,
                )
                outcome = simulation.run(coming)
                table.add_row(name, f"{part}", mode.value, *_outcome_columns(outcome))
            table.add_section()
    Console(width=120).print(table)


def _outcome_columns(outcome: Outcome) -> list[str]:
    num_all = outcome.num_here + outcome.num_handed_over + outcome.num_split
    return [
        f"{fmean(outcome.ttft_ms):.0f}",
        f"{percentile(outcome.ttft_ms, 0.99):.0f}",
        f"{fmean(outcome.gaps_ms):.1f}",
        f"{percentile(outcome.gaps_ms, 0.99):.1f}",
        f"{100 * outcome.goodput(1000, 30):.1f}",
        f"{100 * outcome.num_here / num_all:.0f}",
        f"{100 * outcome.num_split / num_all:.0f}",
    ]


def _runs(
    policy: str,
    case: Case,
    coming: list[Arrival],
    num_blocks: int,
    seeds: int,
    advance: Callable[[], None],
) -> list[Result]:
    return [
        Simulation(policy, num_workers=case.num_workers, num_blocks=num_blocks, seed=seed).run(
            coming, advance=advance
        )
        for seed in range(seeds)
    ]


def _columns(results: list[Result]) -> list[str]:
    seconds = [fmean(r.mean_ms for r in results) / 1000]
    seconds += [fmean(r.percentile_ms(p) for r in results) / 1000 for p in (0.5, 0.9, 0.99)]
    hits = 100 * fmean(r.hit_rate for r in results)
    peak = fmean(r.peak_load for r in results)
    return [*(f"{s:.2f}" for s in seconds), f"{hits:.1f}", f"{peak:.2f}"]


if __name__ == "__main__":
    app()
