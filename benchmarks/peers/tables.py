"""Results as rows of text, for the terminal and for the page alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.peers.measures import METRICS
from benchmarks.peers.statistics import advantage, best

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.peers.measures import Metric
    from benchmarks.peers.results import Results
    from benchmarks.peers.statistics import Summary

OURS = "baton"
NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Grid:
    """A table. The first column is words, the others are numbers."""

    header: list[str]
    rows: list[list[str]]


def engine_grid(results: Results, model: str, *, section: str = "engine") -> Grid | None:
    """All systems on one model, and how we stand to the best peer; None if nothing was measured."""
    summaries = results.summaries(section, model)
    if not summaries:
        return None
    systems = list(dict.fromkeys(name for row in summaries.values() for name in row))
    systems.sort(key=lambda name: not is_ours(name))
    rows = []
    for name, metric in METRICS.items():
        row = summaries.get(name)
        if row is None:
            continue
        cells = [show(row.get(system)) for system in systems]
        rows.append([f"{metric.title}, {metric.unit}", *cells, *_standing(row, metric)])
    return Grid([model, *systems, "best peer", "ours / best peer"], rows)


def is_ours(system: str) -> bool:
    """Whether it is one of our own rows."""
    return system.split()[0] == OURS


def show(summary: Summary | None) -> str:
    """Median with quartiles."""
    if summary is None:
        return NOTHING
    median = show_number(summary.median)
    if summary.num == 1:
        return f"{median} (n=1)"
    low, high = show_number(summary.first_quartile), show_number(summary.third_quartile)
    note = "" if summary.num >= 5 else f", n={summary.num}"
    return f"{median} ({low}–{high}{note})"


def show_number(value: float) -> str:
    """Three digits that mean something."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _standing(row: Mapping[str, Summary], metric: Metric) -> list[str]:
    peers = {name: summary.median for name, summary in row.items() if not is_ours(name)}
    rival = best(peers, higher_is_better=metric.higher_is_better)
    if rival is None or OURS not in row:
        return [rival or NOTHING, NOTHING]
    ratio = row[OURS].median / peers[rival]
    times = advantage(row[OURS].median, peers[rival], higher_is_better=metric.higher_is_better)
    return [rival, f"{ratio:.2f}× ({'better' if times >= 1 else 'worse'})"]
