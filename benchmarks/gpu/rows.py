"""What was measured: rows, and the ceilings of the same run that they are shares of."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rich.console import Console


@dataclass(slots=True, kw_only=True)
class Row:
    """One measurement. `goal` is the number of the goal that it belongs to, such as K1."""

    goal: str
    name: str
    seconds: float | None = None
    #: Bytes read and written, and operations, counted by hand.
    num_bytes: float = 0
    num_flops: float = 0
    #: Share of the ceiling that limits it: the least time possible over the time it took.
    share: float | None = None
    #: Largest relative error against a reference in float32.
    error: float | None = None
    value: str = ""
    failed: str = ""


@dataclass(slots=True)
class Report:
    """Rows as they come, within a budget of seconds."""

    console: Console
    budget_s: float
    rows: list[Row] = field(default_factory=list)
    #: Bytes per second of a device copy, operations per second of a matrix product.
    copy_rate: float = 0.0
    gemm_rate: float = 0.0
    started_at: float = field(default_factory=time.monotonic)

    @property
    def is_over(self) -> bool:
        """Whether the budget is spent."""
        return time.monotonic() - self.started_at > self.budget_s

    def measure(
        self,
        goal: str,
        name: str,
        measure: Callable[[], float],
        *,
        num_bytes: float = 0,
        num_flops: float = 0,
        error: Callable[[], float] | None = None,
    ) -> Row:
        """Add a row. What fails or comes too late is a row that says so, never a crash."""
        row = Row(goal=goal, name=name, num_bytes=num_bytes, num_flops=num_flops)
        if self.is_over:
            row.failed = "over budget"
            return self.add(row)
        try:
            row.seconds = measure()
            row.error = None if error is None else error()
        except Exception as problem:  # noqa: BLE001 a peer or a kernel may lack anything
            row.failed = f"{type(problem).__name__}: {problem}"[:200]
        return self.add(row)

    def note(self, goal: str, name: str, value: str) -> Row:
        """Add a row that is no time."""
        return self.add(Row(goal=goal, name=name, value=value))

    def add(self, row: Row) -> Row:
        """Add a row, with its share if a ceiling of this run limits it."""
        if row.seconds and self.copy_rate and self.gemm_rate:
            least = row.num_bytes / self.copy_rate + row.num_flops / self.gemm_rate
            row.share = least / row.seconds or None
        self.rows.append(row)
        self.console.print(*_cells(row), sep=" | ", highlight=False)
        return row

    def show(self, title: str) -> None:
        """Print everything as one table."""
        table = Table("goal", "what", "time", "rate", "share", "error", "", title=title)
        for row in self.rows:
            table.add_row(*_cells(row))
        self.console.print(table)

    def save(self, path: Path) -> None:
        """Write the rows as JSON."""
        rows = [asdict(row) for row in self.rows]
        ceilings = {"copy_rate": self.copy_rate, "gemm_rate": self.gemm_rate}
        path.write_text(json.dumps({"ceilings": ceilings, "rows": rows}, indent=1) + "\n")


def _cells(row: Row) -> list[str]:
    rate = ""
    if row.seconds and row.num_flops:
        rate = f"{row.num_flops / row.seconds / 1e12:.1f} TFLOP/s"
    elif row.seconds and row.num_bytes:
        rate = f"{row.num_bytes / row.seconds / 1e9:.1f} GB/s"
    return [
        row.goal,
        row.name,
        "" if row.seconds is None else _time(row.seconds),
        rate,
        "" if row.share is None else f"{row.share:.0%}",
        "" if row.error is None else f"{row.error:.1e}",
        row.failed or row.value,
    ]


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"
