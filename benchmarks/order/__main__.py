"""`python -m benchmarks.order simulate` and `… live`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.order.live import LiveEngine
from benchmarks.order.simulation import COST, Simulation
from benchmarks.order.workload import Mix, arrivals
from shared.engine.settings.choices import SchedulingPolicy

if TYPE_CHECKING:
    from benchmarks.order.workload import Waits

_POLICIES = (SchedulingPolicy.FCFS, SchedulingPolicy.URGENCY)

app = typer.Typer(help=__doc__, add_completion=False)


@app.callback()
def order() -> None:
    """Measure the order of prompts."""


@app.command()
def simulate(
    num: Annotated[int, typer.Option(help="Prompts per run.")] = 3000,
    seeds: Annotated[int, typer.Option(help="Runs of each line.")] = 3,
    load: Annotated[list[float] | None, typer.Option(help="Shares of the capacity.")] = None,
) -> None:
    """The scheduler alone, by a simulated clock: 95 % of 50 to 400 tokens, 5 % of 10k to 20k."""
    mix, table = Mix(), _table("by a simulated clock")
    for share in load or [0.5, 0.7, 0.8, 0.9, 1.1]:
        runs: dict[SchedulingPolicy, list[Waits]] = {}
        for seed in range(seeds):
            lengths = mix.draw(num, seed)
            work_s = sum(COST.more_ms(n, 0) + COST.per_step * n / 2048 for n in lengths) / 1e3
            coming = arrivals(lengths, work_s=work_s, load=share, seed=seed)
            for policy in _POLICIES:
                runs.setdefault(policy, []).append(Simulation(policy).run(coming, mix))
        _add(table, share, runs)
    Console(width=120).print(table)


@app.command()
def live(
    num: Annotated[int, typer.Option(help="Prompts per run.")] = 400,
    longest: Annotated[int, typer.Option(help="Tokens of the longest prompt.")] = 8000,
    load: Annotated[float, typer.Option(help="Share of the capacity.")] = 0.7,
    seconds: Annotated[float, typer.Option(help="Work per run, at most; there are four.")] = 24.0,
    seed: Annotated[int, typer.Option(help="Of lengths and times.")] = 0,
) -> None:
    """The whole engine with a small random model on this machine's processor."""
    mix, table = Mix(long=(longest // 2, longest)), _table("by the wall's clock")
    lengths, costs = mix.draw(num, seed), (0.0, 0.0)
    runs: dict[SchedulingPolicy, list[Waits]] = {}

    def work_s() -> float:
        """Return the time of all prompts, in proportion to that of a short and of a long one."""
        return sum(n * costs[mix.is_long(n)] for n in lengths)

    with tempfile.TemporaryDirectory() as folder:
        # Forth and back, so that a machine that changes treats both alike.
        for policy in (*_POLICIES, *reversed(_POLICIES)):
            engine = LiveEngine(Path(folder), policy, longest=longest)
            usual = (sum(mix.short) // 2, sum(mix.long) // 2)
            found = [
                engine.seconds_of(n, times) / n for n, times in zip(usual, (9, 3), strict=True)
            ]
            costs = costs if any(costs) else (found[0], found[1])
            while work_s() > seconds:
                lengths.pop()
            coming = arrivals(lengths, work_s=work_s(), load=load, seed=seed)
            runs.setdefault(policy, []).append(engine.run(coming, mix))
            engine.close()
    _add(table, load, runs)
    Console(width=120).print(table)
    rates = " and ".join(f"{1 / cost:.0f}" for cost in costs)
    Console().print(f"{len(lengths)} prompts; {rates} tokens/s of a short and a long one alone")


def _table(how: str) -> Table:
    return Table(
        "load", "policy", "short: mean ms", "p95", "long: mean ms", "p95", "longest", "busy s",
        title=f"Time to first token {how}",
    )  # fmt: skip


def _add(table: Table, load: float, runs: dict[SchedulingPolicy, list[Waits]]) -> None:
    found = {}
    for policy, waits in runs.items():
        columns = [fmean(values) for values in zip(*(w.columns for w in waits), strict=True)]
        found[policy] = columns
        busy_s = fmean(w.busy_s for w in waits)
        cells = [f"{1e3 * s:.0f}" for s in columns]
        table.add_row(f"{load}", policy.value, *cells, f"{busy_s:.1f}")
    fcfs, urgency = (found[policy] for policy in _POLICIES)
    ratios = [f"{b / a:.2f}" for a, b in zip(fcfs, urgency, strict=True)]
    table.add_row("", "ratio", *ratios, "")
    table.add_section()


if __name__ == "__main__":
    app()
