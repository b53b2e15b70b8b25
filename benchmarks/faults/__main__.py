"""Breaks a real cluster in every way, at every moment of a request, and says what became of it.

    python -m benchmarks.faults run --subset ci
    python -m benchmarks.faults run --faults kill,drain --states streaming --out results.json
    python -m benchmarks.faults page results.json
    python -m benchmarks.faults mutants
    python -m benchmarks.faults soak --minutes 30

The exit code is 1 if a promise of `thresholds.py` was broken. As root, processes live in network
namespaces of their own; as anybody else, on loopback.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.faults import matrix, network
from benchmarks.faults.mutants import run_mutants
from benchmarks.faults.report import line_of, write_page
from benchmarks.faults.result import Cell, Results, read, write
from benchmarks.faults.runner import Runner
from benchmarks.faults.soak import run_soak
from benchmarks.faults.thresholds import broken

app = typer.Typer(add_completion=False)

OnLoopback = Annotated[bool, typer.Option("--loopback", help="No namespaces, even as root.")]
Logs = Annotated[bool, typer.Option("--keep-logs", help="Leave the processes' logs behind.")]
RESULTS = Path("benchmarks/faults/results.json")


@app.command()
def run(
    subset: Annotated[str | None, typer.Option(help="ci: the most telling cells.")] = None,
    faults: Annotated[str | None, typer.Option(help="Parts of names, commas between.")] = None,
    states: Annotated[str | None, typer.Option(help="Parts of names, commas between.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write results.")] = None,
    add: Annotated[bool, typer.Option(help="Keep other cells that are in --out.")] = False,
    loopback: OnLoopback = False,
    keep_logs: Logs = False,
) -> None:
    """Run cells of the matrix."""
    cells = matrix.select(_names(faults), _names(states), subset=subset)
    runner = Runner(namespaces=_enter(loopback))
    try:
        results = asyncio.run(runner.run(cells, _show))
    finally:
        runner.close(keep_logs=keep_logs)
    num_broken = results.num_broken
    if out is not None:
        write(_merged(results, out) if add and out.exists() else results, out)
    typer.echo(f"{len(cells)} cells, {num_broken} broke a promise")
    raise typer.Exit(1 if num_broken else 0)


@app.command()
def page(results: Annotated[Path, typer.Argument()] = RESULTS) -> None:
    """Write the table and the picture of docs/reliability.md."""
    write_page(read(results))


@app.command()
def mutants(
    names: Annotated[str | None, typer.Option(help="Which, commas between.")] = None,
    loopback: OnLoopback = False,
) -> None:
    """Break a promise on purpose, and see that the matrix notices; each in a cluster of its own."""
    missed = asyncio.run(run_mutants(_names(names), namespaces=_enter(loopback), show=typer.echo))
    raise typer.Exit(1 if missed else 0)


@app.command()
def soak(
    minutes: Annotated[float, typer.Option(help="How long.")] = 30.0,
    out: Annotated[Path, typer.Option(help="Where to write what was seen.")] = Path("soak.json"),
    loopback: OnLoopback = False,
) -> None:
    """A random fault every 20 s under mixed load; memory of every process over time."""
    runner = Runner(namespaces=_enter(loopback))
    try:
        problems = asyncio.run(run_soak(runner, minutes=minutes, out=out, show=typer.echo))
    finally:
        runner.close()
    for problem in problems:
        typer.echo(f"broken: {problem}")
    raise typer.Exit(1 if problems else 0)


def _enter(loopback: bool) -> bool:
    """Go on in namespaces where that is possible; whether we are there."""
    if loopback or not network.can_have_namespaces():
        return False
    network.enter()
    return True


def _names(text: str | None) -> list[str] | None:
    return text.split(",") if text else None


def _show(cell: Cell) -> None:
    typer.echo(line_of(cell, broken(cell)))


def _merged(results: Results, path: Path) -> Results:
    old = read(path)
    for cell in results.cells:
        old.add(cell)
    return old


if __name__ == "__main__":
    app()
