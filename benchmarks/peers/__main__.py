"""`python -m benchmarks.peers`: measure Baton beside its peers."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.peers.machine.description import describe_machine, revision
from benchmarks.peers.measures import MEASURES
from benchmarks.peers.places import RESULTS
from benchmarks.peers.report.page import write_page
from benchmarks.peers.report.tables import Grid, engine_grid, serving_grid, share_grid, vector_grid
from benchmarks.peers.results import Results, load_results, merge
from benchmarks.peers.run.runner import Runner
from benchmarks.peers.run.selection import ENGINES, Part, default_parts, full_parts, narrow
from benchmarks.peers.serving.measures import INTERFERENCE_METRICS, RATE_METRICS
from cli.places import ROOT
from cli.start.interrupts import Terminated, interrupts
from shared.errors import BatonError

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)

PAGE = ROOT / "docs" / "performance.md"
Files = Annotated[list[Path], typer.Argument(help="Result files; several are put together.")]
Names = Annotated[str, typer.Option(help="Comma-separated; by default all of the selection.")]


@app.callback()
def peers() -> None:
    """Measure Baton beside its peers on this machine."""


@app.command()
def run(
    full: Annotated[bool, typer.Option("--full", help="Everything; takes hours.")] = False,
    budget_minutes: Annotated[
        float, typer.Option(min=0, help="0: as long as it takes. Not used with --full.")
    ] = 15.0,
    repetitions: Annotated[int, typer.Option(min=1, help="Visits of each measure.")] = 5,
    sections: Names = "",
    models: Names = "",
    systems: Names = "",
    measures: Names = "",
    out: Annotated[Path | None, typer.Option(help="By default named after the time.")] = None,
) -> None:
    """Measure, show the tables, and keep every sample in a file."""
    now = datetime.now(UTC)
    path = out or RESULTS / f"{now:%Y%m%d-%H%M%S}.json"
    parts = narrow(
        full_parts() if full else default_parts(),
        sections=_split(sections),
        models=_split(models),
        systems=_split(systems),
        measures=_split(measures),
    )
    results = Results(
        date=now.date().isoformat(),
        machine=describe_machine(),
        settings={"selection": "full" if full else "default", "revision": revision()},
    )
    budget_s = None if full or not budget_minutes else budget_minutes * 60
    _measure(results, parts, path, repetitions=repetitions, budget_s=budget_s)


@app.command()
def quick(
    model: Annotated[str, typer.Option(help="small, medium, experts, hybrid or states.")] = "small",
    systems: Annotated[str, typer.Option(help="Comma-separated: " + ", ".join(ENGINES))] = (
        "baton,vllm"
    ),
    measures: Annotated[
        str, typer.Option(help="Comma-separated: " + ", ".join(m.name for m in MEASURES))
    ] = "single-1024,single-32,batch-16,prefix",
    repetitions: Annotated[int, typer.Option(min=1, help="Visits of each measure.")] = 2,
) -> None:
    """Ours in process against vLLM, in about two minutes. For use while something is tuned."""
    names = tuple(_split(systems))
    part = Part(section="engine", model=model, systems=names, measures=MEASURES, share=1)
    parts = narrow([part], sections=(), models=(), systems=names, measures=_split(measures))
    results = Results(date=datetime.now(UTC).date().isoformat(), machine=describe_machine())
    out = RESULTS / "quick.json"
    _measure(results, parts, out, repetitions=repetitions, budget_s=None, limits_twice=False)


@app.command()
def table(files: Files) -> None:
    """Show results again."""
    _show(merge([load_results(path) for path in files]))


@app.command()
def page(
    files: Files,
    out: Annotated[Path, typer.Option(help="Markdown file; plots go beside it.")] = PAGE,
) -> None:
    """Write the page with tables and plots from results."""
    for path in write_page(merge([load_results(path) for path in files]), out):
        typer.echo(f"wrote {path}")


def _measure(
    results: Results,
    parts: list[Part],
    path: Path,
    *,
    repetitions: int,
    budget_s: float | None,
    limits_twice: bool = True,
) -> None:
    progress = Console(stderr=True)
    started_s = time.monotonic()
    with progress.status("starting") as status, interrupts():

        def note(text: str) -> None:
            line = f"{time.monotonic() - started_s:4.0f} s  {text}"
            status.update(line)
            if not progress.is_terminal:
                progress.print(line, highlight=False, soft_wrap=True)

        runner = Runner(results, note=note, save=lambda: results.save(path))
        runner.run(parts, repetitions=repetitions, budget_s=budget_s, limits_twice=limits_twice)
    _show(results)
    progress.print(f"every sample: {path}", highlight=False, soft_wrap=True)
    if results.failed:
        raise typer.Exit(1)


def _show(results: Results) -> None:
    console = Console(width=150)
    for model in dict.fromkeys(sample.model for sample in results.samples):
        serving = [
            serving_grid(results, model, metrics)
            for metrics in (INTERFERENCE_METRICS, RATE_METRICS)
        ]
        for grid in (
            engine_grid(results, model),
            share_grid(results, model),
            vector_grid(results, model),
            *serving,
        ):
            if grid is not None:
                console.print(_render(grid))
    for section, systems in results.systems.items():
        for name, facts in systems.items():
            if "missing" in facts:
                console.print(f"{section}, {name}: {facts['missing']}", highlight=False)
    for text in (*results.omitted, *results.failed):
        console.print(text, highlight=False, markup=False)
    noise = max((sample.background_cores for sample in results.samples), default=0.0)
    console.print(f"others kept up to {noise:.2f} cores busy meanwhile", highlight=False)


def _render(grid: Grid) -> Table:
    rendered = Table(grid.header[0])
    for title in grid.header[1:]:
        rendered.add_column(title, justify="right")
    for row in grid.rows:
        rendered.add_row(*row)
    return rendered


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def main() -> None:
    """Run the command; what the user can mend is shown without a traceback."""
    try:
        app(prog_name="python -m benchmarks.peers")
    except BatonError as error:
        typer.secho(f"error: {error}", err=True, fg=typer.colors.RED)
        raise SystemExit(2) from error
    except Terminated as ended:
        raise SystemExit(ended.exit_code) from None


if __name__ == "__main__":
    main()
