"""`python -m benchmarks.peers`: measure Baton beside its peers."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.peers.machine import describe_machine, measured_cores
from benchmarks.peers.measures import MEASURES
from benchmarks.peers.models import model_folder
from benchmarks.peers.results import Results
from benchmarks.peers.rotation import Rotation
from benchmarks.peers.systems import Baton, Launch, System, Vllm
from benchmarks.peers.tables import Grid, engine_grid

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)

SYSTEMS: dict[str, System] = {
    "baton": Baton(),
    "baton-int8": Baton(quantization="int8"),
    "vllm": Vllm(),
}


@app.callback()
def peers() -> None:
    """Measure Baton beside its peers on this machine."""


@app.command()
def quick(
    model: Annotated[str, typer.Option(help="small or medium.")] = "small",
    systems: Annotated[str, typer.Option(help="Comma-separated: " + ", ".join(SYSTEMS))] = (
        "baton,vllm"
    ),
    measures: Annotated[
        str, typer.Option(help="Comma-separated: " + ", ".join(m.name for m in MEASURES))
    ] = "single-1024,single-32,batch-16,prefix",
    repetitions: Annotated[int, typer.Option(min=1, help="Visits of each measure.")] = 2,
) -> None:
    """Ours in process against vLLM, in about two minutes. For use while something is tuned."""
    console = Console(stderr=True)
    results = Results(date=datetime.now(UTC).date().isoformat(), machine=describe_machine())
    chosen = [m for m in MEASURES if m.name in measures.split(",")]
    with (
        tempfile.TemporaryDirectory(prefix="baton-bench-") as folder,
        console.status("starting") as status,
        Rotation(model, results, status.update) as rotation,
    ):
        launch = Launch(model=model_folder(model), cores=measured_cores(), folder=Path(folder))
        for name in systems.split(","):
            rotation.load(SYSTEMS[name], launch)
        for repetition in range(repetitions):
            for measure in chosen:
                rotation.visit(measure, rotation.systems, repetition)
    _show_missing(console, results)
    grid = engine_grid(results, model)
    if grid is not None:
        Console(width=120).print(render(grid))
    noise = max((sample.background_cores for sample in results.samples), default=0.0)
    console.print(f"others kept up to {noise:.2f} cores busy meanwhile", highlight=False)


def render(grid: Grid) -> Table:
    """For the terminal."""
    table = Table(grid.header[0])
    for title in grid.header[1:]:
        table.add_column(title, justify="right")
    for row in grid.rows:
        table.add_row(*row)
    return table


def _show_missing(console: Console, results: Results) -> None:
    for systems in results.systems.values():
        for name, facts in systems.items():
            if "missing" in facts:
                console.print(f"{name}: {facts['missing']}", style="yellow", highlight=False)


if __name__ == "__main__":
    app()
