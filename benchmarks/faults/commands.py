"""The commands of `python -m benchmarks.faults`; see there."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarks.faults import matrix
from benchmarks.faults import mutants as mutation
from benchmarks.faults.process import Launch, launch
from benchmarks.faults.runner import Runner
from benchmarks.faults.soak import run_soak
from benchmarks.faults.system import network
from benchmarks.faults.system.scale import FULL, SMALL
from benchmarks.faults.verdict.report import line_of, write_page
from benchmarks.faults.verdict.result import Cell, Results, read, write
from benchmarks.faults.verdict.thresholds import broken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.faults.kinds.base import Fault
    from benchmarks.faults.mutants import Mutant
    from benchmarks.faults.states import State

app = typer.Typer(add_completion=False)

OnLoopback = Annotated[bool, typer.Option("--loopback", help="No namespaces, even as root.")]
Launcher = Annotated[
    str | None, typer.Option(hidden=True, help="MODULE:NAME of what starts processes.")
]
Logs = Annotated[bool, typer.Option("--keep-logs", help="Leave the processes' logs behind.")]
RESULTS = Path("benchmarks/faults/results.json")


@app.command()
def run(
    subset: Annotated[str | None, typer.Option(help="ci: the most telling cells.")] = None,
    faults: Annotated[str | None, typer.Option(help="Parts of names, commas between.")] = None,
    states: Annotated[str | None, typer.Option(help="Parts of names, commas between.")] = None,
    mutants: Annotated[str | None, typer.Option(help="Then these, commas between.")] = None,
    small: Annotated[bool, typer.Option("--small", help="A small load for any cells.")] = False,
    out: Annotated[Path | None, typer.Option(help="Where to write results.")] = None,
    add: Annotated[bool, typer.Option(help="Keep other cells that are in --out.")] = False,
    loopback: OnLoopback = False,
    keep_logs: Logs = False,
    launcher: Launcher = None,
) -> None:
    """Run cells of the matrix; those of a subset under a small load."""
    cells = matrix.select(_names(faults), _names(states), subset=subset)
    broken_services = mutation.select(_names(mutants)) if mutants else []
    namespaces = _enter(loopback)
    scale = SMALL if subset or small else FULL
    runner = Runner(namespaces=namespaces, scale=scale, launch=_launch(launcher))
    try:
        results = asyncio.run(runner.run([*cells, *_cells(broken_services)], _show))
    finally:
        runner.close(keep_logs=keep_logs)
    num_missed = _judge(broken_services, results)
    num_broken = results.num_broken
    if out is not None:
        write(_merged(results, out) if add and out.exists() else results, out)
    typer.echo(f"{len(cells)} cells, {num_broken} broke a promise")
    raise typer.Exit(1 if num_broken or num_missed else 0)


@app.command()
def page(results: Annotated[Path, typer.Argument()] = RESULTS) -> None:
    """Write the table and the picture of docs/reliability.md."""
    write_page(read(results))


@app.command()
def mutants(
    names: Annotated[str | None, typer.Option(help="Which, commas between.")] = None,
    loopback: OnLoopback = False,
) -> None:
    """Break a promise on purpose, and see that the matrix notices."""
    chosen = mutation.select(_names(names))
    runner = Runner(namespaces=_enter(loopback))
    try:
        results = asyncio.run(runner.run(_cells(chosen), lambda cell: None))
    finally:
        runner.close()
    raise typer.Exit(1 if _judge(chosen, results) else 0)


@app.command()
def soak(
    minutes: Annotated[float, typer.Option(help="How long.")] = 30.0,
    out: Annotated[Path, typer.Option(help="Where to write what was seen.")] = Path("soak.json"),
    faults: Annotated[str | None, typer.Option(help="Only these; parts of names.")] = None,
    loopback: OnLoopback = False,
) -> None:
    """A random fault every 20 s under mixed load; memory of every process over time."""
    chosen = {fault.name: fault for fault, _ in matrix.select(_names(faults), None, subset=None)}
    only = list(chosen.values()) if faults else None
    runner = Runner(namespaces=_enter(loopback))
    try:
        problems = asyncio.run(
            run_soak(runner, minutes=minutes, out=out, show=typer.echo, faults=only)
        )
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


def _launch(place: str | None) -> Launch:
    if place is None:
        return launch
    module, _, name = place.partition(":")
    found: Launch = getattr(importlib.import_module(module), name)
    return found


def _cells(mutants: Sequence[Mutant]) -> list[tuple[Fault, State]]:
    return [(mutant, mutant.state) for mutant in mutants]


def _judge(mutants: Sequence[Mutant], results: Results) -> int:
    """Say which were noticed; takes their cells out of the results, and returns how many were not.

    A broken service breaks promises: those cells say nothing about the others.
    """
    num_missed = 0
    for mutant in mutants:
        (cell,) = [cell for cell in results.cells if cell.fault == mutant.name]
        results.cells.remove(cell)
        caught, line = mutant.verdict(cell)
        num_missed += not caught
        typer.echo(line)
    return num_missed


def _names(text: str | None) -> list[str] | None:
    return text.split(",") if text else None


def _show(cell: Cell) -> None:
    if cell.fault not in matrix.FAULTS:
        return  # A mutant's: `_judge` says what was seen.
    typer.echo(line_of(cell, broken(cell)))


def _merged(results: Results, path: Path) -> Results:
    old = read(path)
    old.add_all(results)
    return old
