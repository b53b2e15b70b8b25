"""`python -m benchmarks.pareto run | simulate | table | page`."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.pareto.bars import cells
from benchmarks.pareto.choice import MAX_MODEL_LEN, Choice
from benchmarks.pareto.page import PAGE, write_page
from benchmarks.pareto.real import RealRun
from benchmarks.pareto.results import Results, Slo
from benchmarks.pareto.simulated import simulate_all
from benchmarks.pareto.systems import all_names
from benchmarks.pareto.tables import CELL_HEADINGS, RATIO_HEADINGS, cell_rows, ratio_rows, verdict
from benchmarks.peers.machine.description import describe_machine, revision
from benchmarks.routing.step_time import CORE, DEVICE
from benchmarks.routing.workloads import ALL_WORKLOADS
from cli.places import ROOT
from cli.start.interrupts import Terminated, interrupts
from shared.errors import BatonError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FOLDER = ROOT / "results" / "pareto"
QUICK_LOADS = (0.2, 0.6, 1.0)
#: A simulated cell takes about a second.
QUICK_SIMULATED_LOADS = (0.1, 0.3, 0.6, 0.9, 1.2)
FULL_LOADS = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0, 1.1, 1.2)

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)

Workloads = Annotated[list[str] | None, typer.Option("--workload", help="Default: all.")]
Loads = Annotated[list[float] | None, typer.Option("--load", help="Shares of the capacity.")]
Out = Annotated[Path | None, typer.Option(help="File of results; one that exists is gone on with.")]


@app.callback()
def pareto() -> None:
    """Measure elastic placement beside both fixed shapes."""


@app.command()
def run(
    full: Annotated[
        bool, typer.Option("--full/--quick", help="Hours, or a quarter of an hour.")
    ] = False,
    peers: Annotated[bool, typer.Option("--peers", help="vLLM in both shapes, too.")] = False,
    minutes: Annotated[
        float, typer.Option(min=0, help="Stop after so many; go on with the same command. 0: no.")
    ] = 0.0,
    workload: Workloads = None,
    load: Loads = None,
    span_s: Annotated[float | None, typer.Option(help="Seconds of arrivals of a cell.")] = None,
    repetitions: Annotated[int | None, typer.Option(min=1, help="Of each cell.")] = None,
    model: Annotated[str, typer.Option(help="Of `python -m benchmarks.peers`.")] = "small",
    out: Out = None,
) -> None:
    """Measure on two real workers with a core each, and show the tables."""
    chosen = Choice(
        workloads=_workloads(workload),
        loads=tuple(load or (FULL_LOADS if full else QUICK_LOADS)),
        span_s=span_s or (120.0 if full else 10.0),
        repetitions=repetitions or (2 if full else 1),
        slo=Slo(ttft_ms=4000.0 if full else 2000.0, itl_ms=60.0),
        size=1 / 8 if full else 1 / 16,
        time=1.0 if full else 1 / 12,
        capacity_s=60.0 if full else 10.0,
    )
    path = out or FOLDER / ("full.json" if full else "quick.json")
    settings = {"model": model, "max_model_len": MAX_MODEL_LEN, "revision": revision()}
    results = Results(
        kind="real",
        settings=chosen.settings() | settings,
        machine=describe_machine(),
        slo=chosen.slo,
    ).resumed(path)
    progress, started_s = Console(stderr=True), time.monotonic()
    with interrupts():
        is_whole = RealRun(
            chosen,
            results,
            path,
            model=model,
            systems=all_names(peers),
            end_s=started_s + minutes * 60 if minutes else math.inf,
            note=partial(_note, progress, started_s),
        ).run()
    _show(results)
    progress.print(f"all rows: {path}", highlight=False, soft_wrap=True)
    if not is_whole:
        progress.print("not everything was measured: the same command goes on")


@app.command()
def simulate(
    full: Annotated[bool, typer.Option("--full/--quick", help="An hour, or some minutes.")] = False,
    workload: Workloads = None,
    load: Loads = None,
    num_workers: Annotated[int, typer.Option(help="In all.")] = 4,
    span_s: Annotated[float | None, typer.Option(help="Simulated seconds of arrivals.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of each cell.")] = None,
    cores: Annotated[
        bool, typer.Option("--cores", help="Times and sizes of `run`: workers with a core each.")
    ] = False,
    out: Out = None,
) -> None:
    """Measure on simulated workers, and show the tables."""
    chosen = Choice(
        workloads=_workloads(workload),
        loads=tuple(load or (FULL_LOADS if full else QUICK_SIMULATED_LOADS)),
        span_s=span_s or (240.0 if full else 125.0),
        repetitions=seeds or (4 if full else 2),
    )
    if cores:
        chosen = replace(chosen, slo=Slo(ttft_ms=2000.0, itl_ms=60.0), size=1 / 16, time=1 / 12)
    name = "simulated-cores" if cores else "simulated"
    path = out or FOLDER / f"{name}{'-full' if full else ''}.json"
    settings = {"num_workers": num_workers, "cores": cores, "revision": revision()}
    results = Results(
        kind="simulated", settings=chosen.settings() | settings, slo=chosen.slo
    ).resumed(path)
    step_time = CORE if cores else DEVICE
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("simulating", total=len(results.left(chosen.turns())))
        simulate_all(
            chosen,
            results,
            path,
            num_workers=num_workers,
            advance=lambda: progress.advance(task),
            time=step_time,
        )
    _show(results)
    print(f"all rows: {path}")


@app.command()
def table(file: Annotated[Path, typer.Argument(help="Of results.")]) -> None:
    """Show results again."""
    _show(Results.load(file))


@app.command()
def page(
    full: Annotated[
        bool, typer.Option("--full/--quick", help="Which results of `run` and `simulate`.")
    ] = False,
    real: Annotated[Path | None, typer.Option(help="Others of `run`.")] = None,
    simulated: Annotated[Path | None, typer.Option(help="Others of `simulate`.")] = None,
    out: Annotated[Path, typer.Option(help="Markdown file; plots go beside it.")] = PAGE,
) -> None:
    """Write the page with tables and plots from results of both kinds."""
    measured = real or FOLDER / ("full.json" if full else "quick.json")
    computed = simulated or FOLDER / ("simulated-full.json" if full else "simulated.json")
    for path in write_page(Results.load(measured), Results.load(computed), out):
        print(f"wrote {path}")


def _note(progress: Console, started_s: float, text: str) -> None:
    line = f"{time.monotonic() - started_s:5.0f} s  {text}"
    progress.print(line, highlight=False, markup=False, soft_wrap=True)


def _workloads(names: Sequence[str] | None) -> tuple[str, ...]:
    for name in names or ():
        if name not in ALL_WORKLOADS:
            raise ConfigError(f"--workload: {name!r} is none of {', '.join(ALL_WORKLOADS)}")
    return tuple(names or ALL_WORKLOADS)


def _show(results: Results) -> None:
    console = Console(width=150)
    found = cells(results.rows)
    console.print(_table(f"{results.kind} workers", CELL_HEADINGS, cell_rows(found)))
    console.print(_table("elastic / the better of both", RATIO_HEADINGS, ratio_rows(found)))
    for sentence in verdict(found) if found else ():
        console.print(sentence, highlight=False)
    for name, reason in results.missing.items():
        console.print(f"{name}: {reason}", highlight=False)


def _table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    rendered = Table(*headings, title=title)
    for row in rows:
        rendered.add_row(*row)
    return rendered


def main() -> None:
    """Run the command; what the user can mend is shown without a traceback."""
    try:
        app(prog_name="python -m benchmarks.pareto")
    except BatonError as error:
        typer.secho(f"error: {error}", err=True, fg=typer.colors.RED)
        raise SystemExit(2) from error
    except Terminated as ended:
        raise SystemExit(ended.exit_code) from None


if __name__ == "__main__":
    main()
