"""`python -m benchmarks.overload run | bombs | page`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.overload.bombs import measure
from benchmarks.overload.cluster import running
from benchmarks.overload.drive import drive, find_capacity
from benchmarks.overload.page import write_page
from benchmarks.overload.results import BombResult, Phase, Result
from benchmarks.overload.tables import (
    BOMB_HEADINGS,
    HEADINGS,
    bomb_rows,
    load_rows,
    memory_rows,
    tenant_rows,
)
from benchmarks.overload.tenants import WEIGHTS
from benchmarks.peers.machine.description import describe_machine, revision

if TYPE_CHECKING:
    from collections.abc import Sequence

FOLDER = Path(".run/overload")
BOMBS = FOLDER / "bombs.json"
LOADS = (0.5, 1.0, 1.5, 2.0)
HIGHEST = 3.0
MEMORY_HEADINGS = ("process", "MiB first", "last", "MiB/min", "growth", "cores")
TENANT_HEADINGS = ("tenant", "weight", "asked", "accepted", "tokens", "share", "should be")

app = typer.Typer(help=__doc__, add_completion=False)


@app.command()
def run(
    minutes: Annotated[float, typer.Option(help="How long at three times the capacity.")] = 10.0,
    step_s: Annotated[float, typer.Option(help="Seconds at every other load.")] = 30.0,
    max_ttft_ms: Annotated[float, typer.Option(help="The bound on the first token.")] = 1500.0,
    seed: Annotated[int, typer.Option(help="Of arrivals and prompts.")] = 0,
) -> None:
    """Find the capacity, offer up to three times as much, and say what came of it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with running(FOLDER, max_ttft_ms=max_ttft_ms) as cluster:

        async def phases() -> list[Phase]:
            found = await find_capacity(cluster, step_s, seed)
            rate = found.requests_per_s
            steps = [(load, step_s) for load in LOADS] + [(HIGHEST, minutes * 60)]
            done = [found]
            for number, (load, duration_s) in enumerate(steps, 1):
                phase = await drive(
                    cluster,
                    name="load",
                    load=load,
                    capacity_rps=rate,
                    duration_s=duration_s,
                    seed=seed + number,
                )
                done.append(phase)
            tenants = await drive(
                cluster,
                name="tenants",
                load=HIGHEST,
                capacity_rps=rate,
                duration_s=step_s,
                seed=seed + 10,
                tenants=tuple(WEIGHTS),
            )
            return [*done, tenants]

        measured = asyncio.run(phases())
        result = Result(
            revision=revision(),
            machine=describe_machine(),
            max_ttft_ms=max_ttft_ms,
            capacity_rps=measured[0].requests_per_s,
            weights=WEIGHTS,
            phases=measured,
            num_leaked_blocks=cluster.num_leaked_blocks(),
        )
    path = FOLDER / "result.json"
    path.write_bytes(msgspec.json.encode(result))
    _show(result)
    print(f"result: {path}")


@app.command()
def bombs(
    turns: Annotated[int, typer.Option(help="How often quiet and bombs take turns.")] = 5,
    part_s: Annotated[float, typer.Option(help="Seconds of each.")] = 12.0,
) -> None:
    """Measure one tenant beside another's huge schemas."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with running(FOLDER, max_ttft_ms=None) as cluster:
        measured = asyncio.run(measure(cluster, turns=turns, part_s=part_s))
    measured = msgspec.structs.replace(measured, revision=revision())
    BOMBS.write_bytes(msgspec.json.encode(measured))
    console = Console(width=140)
    console.print(_table(f"bombs: {measured.statuses}", BOMB_HEADINGS, bomb_rows(measured)))
    errors = [error for part in measured.parts for error in part.errors]
    console.print(f"errors of the other tenant: {len(errors)} {errors[:3]}")


@app.command()
def page(
    result: Annotated[Path, typer.Option(help="What `run` wrote.")] = FOLDER / "result.json",
    bombs: Annotated[Path, typer.Option(help="What `bombs` wrote.")] = BOMBS,
    docs: Annotated[Path, typer.Option(help="Folder of the page.")] = Path("docs"),
) -> None:
    """Write docs/overload.md and its picture from a run of each."""
    write_page(
        msgspec.json.decode(result.read_bytes(), type=Result),
        msgspec.json.decode(bombs.read_bytes(), type=BombResult),
        docs,
    )


def _show(result: Result) -> None:
    console = Console(width=140)
    console.print(
        _table(
            f"capacity {result.capacity_rps:.1f} requests/s, TTFT up to {result.max_ttft_ms:g} ms",
            HEADINGS,
            load_rows(result),
        )
    )
    highest, tenants = result.phases[-2], result.phases[-1]
    console.print(_table("Memory at the highest load", MEMORY_HEADINGS, memory_rows(highest)))
    console.print(_table("Two tenants", TENANT_HEADINGS, tenant_rows(result, tenants)))
    console.print(f"leaked blocks: {result.num_leaked_blocks}")


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(*headings, title=title)
    for row in rows:
        table.add_row(*row)
    return table


if __name__ == "__main__":
    app()
