"""Results as rows of text, for the terminal and for the page alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.peers.machine.limits import shares
from benchmarks.peers.measures import METRICS
from benchmarks.peers.models import MODELS
from benchmarks.peers.statistics import advantage, best

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from benchmarks.peers.machine.limits import Share
    from benchmarks.peers.measures import Metric
    from benchmarks.peers.results import Results
    from benchmarks.peers.statistics import Summary

NOTHING = "–"
#: A median of fewer is marked.
ENOUGH = 5


@dataclass(frozen=True, slots=True)
class Grid:
    """A table. The first column is words, the others are numbers."""

    header: list[str]
    rows: list[list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Which of our rows is held against which peers."""

    title: str
    ours: str
    #: None: all that are not ours.
    rivals: tuple[str, ...] | None = None


BEST_PEER = Comparison(title="baton / best peer", ours="baton")
INT8 = Comparison(title="int8 / best peer", ours="baton int8")
BEST_EMBEDDER = Comparison(title="baton / best peer", ours="baton vectors")
INT4 = Comparison(title="int4 / best peer", ours="baton int4")
DISAGGREGATED = Comparison(title="P/D / vllm P/D", ours="baton P/D", rivals=("vllm P/D",))


def engine_grid(results: Results, model: str) -> Grid | None:
    """All engines on one model; None if nothing was measured."""
    return comparison_grid(results, "engine", model, METRICS, (BEST_PEER, INT8, INT4))


def vector_grid(results: Results, model: str) -> Grid | None:
    """All that make vectors with one model; None if nothing was measured."""
    return comparison_grid(results, "vectors", model, METRICS, (BEST_EMBEDDER,))


def serving_grid(results: Results, model: str, metrics: Mapping[str, Metric]) -> Grid | None:
    """All servers on one model; None if none of the metrics was measured."""
    rivals = tuple(
        name
        for name in _systems(results.summaries("serving", model).values())
        if name.startswith("baton aggregated")
    )
    own = Comparison(title="P/D / best own aggregated", ours="baton P/D", rivals=rivals)
    return comparison_grid(results, "serving", model, metrics, (DISAGGREGATED, own))


def comparison_grid(
    results: Results,
    section: str,
    model: str,
    metrics: Mapping[str, Metric],
    comparisons: Sequence[Comparison],
) -> Grid | None:
    """One row per metric, one column per system and comparison; None without any row."""
    summaries = results.summaries(section, model)
    rows = {name: summaries[name] for name in metrics if name in summaries}
    if not rows:
        return None
    systems = _systems(rows.values())
    wanted = [c for c in comparisons if c.ours in systems]
    table = []
    for name, row in rows.items():
        metric = metrics[name]
        cells = [show(row.get(system)) for system in systems]
        ratios = [standing(row, metric, comparison) for comparison in wanted]
        table.append([f"{metric.title}, {metric.unit}", *cells, *ratios])
    return Grid([model, *systems, *(comparison.title for comparison in wanted)], table)


def share_grid(results: Results, model: str) -> Grid | None:
    """How much of the machine each bfloat16 engine uses; None if nothing is known of it."""
    if model not in MODELS:  # in few bits: engines keep different parts in more
        return None
    summaries = results.summaries("engine", model)
    systems = [name for name in _systems(summaries.values()) if name not in (INT8.ours, INT4.ours)]
    columns = []
    for system in systems:
        medians = {name: row[system].median for name, row in summaries.items() if system in row}
        columns.append(
            {
                (share.metric, share.title): share
                for metric, value in medians.items()
                for share in shares(
                    MODELS[model], model, {metric: value}, results.limits_of(model, system, metric)
                )
            }
        )
    found_keys = dict.fromkeys(key for column in columns for key in column)
    order = list(METRICS)
    keys = sorted(found_keys, key=lambda key: order.index(key[0]))
    rows = []
    for metric, title in keys:
        found = [column.get((metric, title)) for column in columns]
        cells = [NOTHING if share is None else f"{share.part:.0%}" for share in found]
        rows.append(
            [METRICS[metric].title, title, _span([share for share in found if share]), *cells]
        )
    return Grid([model, "share", "limit", *systems], rows) if rows else None


def _span(shares: Sequence[Share]) -> str:
    """The lowest and the highest limit, or the one that all have."""
    limits = [f"{limit:.0f}" for limit in sorted(share.limit for share in shares)]
    ends = dict.fromkeys((limits[0], limits[-1]))
    return f"{' to '.join(ends)} {shares[0].unit}"


def standing(row: Mapping[str, Summary], metric: Metric, comparison: Comparison) -> str:
    """Our median over that of the best rival, with who that is."""
    ours = row.get(comparison.ours)
    rivals = {
        name: summary.median
        for name, summary in row.items()
        if (not is_ours(name) if comparison.rivals is None else name in comparison.rivals)
    }
    rival = best(rivals, higher_is_better=metric.higher_is_better)
    if ours is None or rival is None:
        return NOTHING
    times = advantage(ours.median, rivals[rival], higher_is_better=metric.higher_is_better)
    word = "better" if times >= 1 else "worse"
    name = "" if len(rivals) == 1 else f"{rival}, "
    return f"{ours.median / rivals[rival]:.2f}× ({name}{word})"


def is_ours(system: str) -> bool:
    """Whether it is one of our own rows."""
    return system.split()[0] == "baton"


def show(summary: Summary | None) -> str:
    """Median with quartiles, and how many values they are of if those are few."""
    if summary is None:
        return NOTHING
    median = show_number(summary.median)
    if summary.num == 1:
        return f"{median} (n=1)"
    low, high = show_number(summary.first_quartile), show_number(summary.third_quartile)
    note = "" if summary.num >= ENOUGH else f", n={summary.num}"
    return f"{median} ({low}–{high}{note})"


def show_number(value: float) -> str:
    """Three digits that mean something."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _systems(rows: Iterable[Mapping[str, Summary]]) -> list[str]:
    """Ours first, otherwise as they were measured."""
    systems = list(dict.fromkeys(name for row in rows for name in row))
    return sorted(systems, key=lambda name: not is_ours(name))
