"""What a run shows: its progress, and a table at the end."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console

    from shared.model.quantize.plan import Source
    from shared.model.quantize.planning import Plan

_UNCHANGED = "as they were"


def make_progress(console: Console) -> Progress:
    """Return a bar of files that are complete."""
    return Progress(
        TextColumn("files"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def make_table(plan: Plan, perplexities: tuple[float, float] | None) -> Table:
    """Return the sizes of a plan's tensors by scheme, and the perplexities of both models."""
    numbers, before, after = Counter[str](), Counter[str](), Counter[str]()
    for source in (each for unit in plan.units for each in unit.sources):
        scheme = _scheme(source)
        numbers[scheme] += len(source.pieces)
        before[scheme] += source.num_bytes_before
        after[scheme] += source.num_bytes
    table = Table(box=None, padding=(0, 1))
    for name in ("tensors", "number", "before", "after"):
        table.add_column(name, justify="left" if name == "tensors" else "right")
    for scheme in sorted(numbers, key=lambda each: (each == _UNCHANGED, each)):
        table.add_row(scheme, str(numbers[scheme]), _size(before[scheme]), _size(after[scheme]))
    table.add_row("all", str(numbers.total()), _size(before.total()), _size(after.total()))
    if perplexities is not None:
        one, other = perplexities
        change = 100 * (other / one - 1)
        table.add_row("perplexity", "", f"{one:.4f}", f"{other:.4f} ({change:+.2f} %)")
    return table


def _scheme(source: Source) -> str:
    found = {piece.matrix.scheme.name for piece in source.pieces if piece.matrix is not None}
    return ", ".join(sorted(found)) or _UNCHANGED


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.2f} MiB"
