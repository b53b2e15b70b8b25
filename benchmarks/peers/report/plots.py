"""Plots of the medians: one figure per section and model, a panel per result."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from benchmarks.peers.report.tables import is_ours, show_number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from benchmarks.peers.measures import Metric
    from benchmarks.peers.statistics import Summary

OURS, THEIRS, INK = "#2563a8", "#b6bcc6", "#30363d"
COLUMNS = 3
PANEL_INCHES = (3.6, 2.1)


def save_bars(
    path: Path,
    rows: Mapping[str, Mapping[str, Summary]],
    metrics: Mapping[str, Metric],
    systems: Sequence[str],
) -> None:
    """Medians as bars with their quartiles; every panel has the same systems in the same order."""
    num_rows = -(-len(rows) // COLUMNS)
    width, height = PANEL_INCHES
    # Without a date and with fixed ids, so that the same results give the same file.
    with mpl.rc_context({"svg.hashsalt": path.name, "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=(COLUMNS * width, num_rows * height), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots(num_rows, COLUMNS, squeeze=False)
        for ax, (name, row) in zip(axes.flat, rows.items(), strict=False):
            _draw(ax, metrics[name], row, systems)
        for ax in axes.flat[len(rows) :]:
            ax.set_axis_off()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})


def _draw(ax: Axes, metric: Metric, row: Mapping[str, Summary], systems: Sequence[str]) -> None:
    ax.set_title(metric.title, loc="left", fontsize=8, color=INK)
    arrow = "→ better" if metric.higher_is_better else "← better"
    ax.set_xlabel(f"{metric.unit}  {arrow}", fontsize=7, color=INK)
    for position, system in enumerate(systems):
        summary = row.get(system)
        if summary is None:
            continue
        spread = [
            [summary.median - summary.first_quartile],
            [summary.third_quartile - summary.median],
        ]
        ax.barh(
            position,
            summary.median,
            color=OURS if is_ours(system) else THEIRS,
            xerr=spread if summary.num > 1 else None,
            error_kw={"ecolor": INK, "elinewidth": 0.8, "capsize": 2},
        )
        ax.annotate(
            f" {show_number(summary.median)}",
            (summary.third_quartile, position),
            va="center",
            fontsize=7,
            color=INK,
        )
    ax.set_yticks(range(len(systems)), systems)
    ax.invert_yaxis()
    ax.margins(x=0.18)
    ax.set_xlim(left=0)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(length=0, labelsize=7)
