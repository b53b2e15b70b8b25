"""Rows of the tables: all numbers of each cell, and elastic against the better of both others."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from benchmarks.pareto.bars import LATENCIES, MODES, ratios

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from benchmarks.pareto.bars import Cell, Ratio

CELL_HEADINGS = (
    "workload", "load", "system", "requests", "failed", "mean TTFT ms", "p99 TTFT ms",
    "p50 ITL ms", "p99 ITL ms", "good %", "tokens/s", "here / handed over / split",
    "others' cores",
)  # fmt: skip
RATIO_HEADINGS = ("workload", "load", "mean TTFT", "p99 TTFT", "p99 ITL", "goodput")
#: Of a ratio on the wrong side of its bar.
MARK = "✗"


def cell_rows(cells: Iterable[Cell]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each system of each cell; ours come first."""
    for cell in cells:
        for system in (*MODES, *(name for name in cell.means if name not in MODES)):
            if system not in cell.means:
                continue
            means = cell.means[system]
            yield (
                cell.workload,
                f"{cell.load:g}",
                system,
                f"{means['num_requests']:.0f}",
                f"{means['num_failed']:.0f}",
                f"{means['mean_ttft_ms']:.0f}",
                f"{means['p99_ttft_ms']:.0f}",
                f"{means['p50_itl_ms']:.1f}",
                f"{means['p99_itl_ms']:.1f}",
                f"{100 * means['goodput']:.1f}",
                f"{means['tokens_per_s']:.0f}",
                _places(means),
                f"{means['others']:.2f}",
            )


def ratio_rows(cells: Iterable[Cell]) -> Iterator[tuple[str, ...]]:
    """Yield elastic over the better of both others; what misses its bar is marked."""
    for cell in cells:
        yield cell.workload, f"{cell.load:g}", *(show(ratio) for ratio in ratios(cell))


def show(ratio: Ratio) -> str:
    """Two digits; three, the mark and the bar if it is missed."""
    if not ratio.is_missed:
        return "∞" if math.isinf(ratio.value) else f"{ratio.value:.2f}"
    sign = "≥" if ratio.metric == "goodput" else "≤"
    return f"{ratio.value:.3f} {MARK} ({sign} {ratio.bar:g})"


def verdict(cells: Sequence[Cell]) -> list[str]:
    """Return a sentence for each metric: how many cells reach its bar, and the worst."""
    found = []
    for metric in (*LATENCIES, "goodput"):
        of_metric = [(cell, r) for cell in cells for r in ratios(cell) if r.metric == metric]
        num_missed = sum(ratio.is_missed for _, ratio in of_metric)
        pick = min if metric == "goodput" else max
        cell, worst = pick(of_metric, key=lambda pair: pair[1].value)
        found.append(
            f"{metric}: {len(of_metric) - num_missed} of {len(of_metric)} cells reach the bar; "
            f"the worst is {worst.value:.2f} ({cell.workload} at {cell.load:g})"
        )
    return found


def _places(means: dict[str, float]) -> str:
    if "here" not in means:
        return "–"
    return " / ".join(f"{means[name]:.0f}" for name in ("here", "handed_over", "split"))
