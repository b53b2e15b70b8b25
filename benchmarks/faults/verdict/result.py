"""What a run of the matrix found, as it is written to disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from benchmarks.faults.verdict.thresholds import broken

if TYPE_CHECKING:
    from pathlib import Path


class Cell(msgspec.Struct, kw_only=True):
    """One fault, injected in one state of the victim."""

    fault: str
    state: str
    #: Where the victim really was when the fault struck.
    reached: str = ""
    #: Why there is nothing else here.
    skipped: str = ""
    is_crash: bool = False
    #: Of the victim: answered, failed, cancelled, hung.
    outcome: str = ""
    outcome_s: float | None = None
    num_requests: int = 0
    num_wrong: int = 0
    num_failed: int = 0
    num_hung: int = 0
    #: Streams whose own router was the one that died: told so, with all tokens until then right.
    num_interrupted: int = 0
    errors: list[str] = []
    #: By worker: what it still held after all requests had ended.
    leaked: dict[str, str] = {}
    keys: list[str] = []
    #: Of the streams that had nothing to do with it, from the fault to the outcome.
    itl_p99_ms: float | None = None
    #: The same before any fault, in the same run.
    quiet_p99_ms: float = 0.0
    num_gaps: int = 0
    problems: list[str] = []
    duration_s: float = 0.0

    @property
    def key(self) -> tuple[str, str]:
        """Its place in the table."""
        return self.fault, self.state


class Results(msgspec.Struct, kw_only=True):
    """All cells of one or several runs on the same machine."""

    machine: str
    #: Those of the runs, commas between.
    commit: str
    network: str
    cells: list[Cell] = []

    def add(self, cell: Cell) -> None:
        """Take a cell in, instead of an older one of the same place."""
        self.cells = [old for old in self.cells if old.key != cell.key] + [cell]

    def add_all(self, other: Results) -> None:
        """Take in the cells of another run on the same machine."""
        for cell in other.cells:
            self.add(cell)
        self.commit = ", ".join(dict.fromkeys([*self.commit.split(", "), other.commit]))

    @property
    def num_broken(self) -> int:
        """Cells that broke a promise."""
        return sum(bool(broken(cell)) for cell in self.cells)


def write(results: Results, path: Path) -> None:
    """Write the results as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1))


def read(path: Path) -> Results:
    """Read the results that `write` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=Results)
