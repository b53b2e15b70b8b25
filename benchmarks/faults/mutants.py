"""The matrix is checked: a service with one promise broken must make it fail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.faults import matrix
from benchmarks.faults.runner import Runner
from benchmarks.faults.states import State
from benchmarks.faults.thresholds import LEAK, WRONG, broken

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.faults.result import Cell

PACKAGE = "benchmarks.faults.broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A broken service, the cell that must notice it, and the promise that it must see broken."""

    name: str
    role: str
    fault: str
    state: State
    promise: str


MUTANTS = (
    Mutant(
        name="checksum_off",
        role="decode",
        fault="zmq corrupted",
        state=State.TRANSFERRING,
        promise=WRONG,
    ),
    Mutant(
        name="late_accepted", role="decode", fault="zmq late", state=State.TRANSFERRING,
        promise=WRONG,
    ),
    Mutant(
        name="release_skipped", role="prefill", fault="client gone", state=State.STREAMING,
        promise=LEAK,
    ),
    Mutant(
        name="replay_skipped", role="decode", fault="kill decode", state=State.STREAMING,
        promise=WRONG,
    ),
)  # fmt: skip


async def run_mutants(
    names: Sequence[str] | None, *, namespaces: bool, show: Callable[[str], None]
) -> list[str]:
    """Run each mutant, or some, in its cell; returns the names of those that nobody noticed."""
    missed = []
    for mutant in MUTANTS:
        if names and mutant.name not in names:
            continue
        runner = Runner(namespaces=namespaces, modules={mutant.role: f"{PACKAGE}.{mutant.name}"})
        try:
            cells = [(matrix.FAULTS[mutant.fault], mutant.state)]
            results = await runner.run(cells, lambda cell: None)
        finally:
            runner.close()
        (cell,) = results.cells
        caught = mutant.promise in broken(cell)
        if not caught:
            missed.append(mutant.name)
        show(_line(mutant, cell, broken(cell), caught=caught))
    return missed


def _line(mutant: Mutant, cell: Cell, promises: dict[str, str], *, caught: bool) -> str:
    seen = "; ".join(promises.values()) or "nothing"
    verdict = "caught" if caught else f"MISSED (wanted: {mutant.promise})"
    return f"{mutant.name} in {cell.fault} @ {cell.state}: {verdict}; seen: {seen}"
