"""Pictures: a line of panels for each workload, a curve over the load for each system."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, MaxNLocator, NullLocator

from benchmarks.pareto.bars import ELASTIC, FIXED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from benchmarks.pareto.bars import Cell

COLOURS = {ELASTIC: "#2563a8", FIXED[0]: "#c0762c", FIXED[1]: "#5b8a3a"}
OTHERS, INK = ("#8a8f98", "#b6bcc6"), "#30363d"
PANELS = {
    "mean_ttft_ms": "mean TTFT, ms",
    "p99_ttft_ms": "p99 TTFT, ms",
    "p50_itl_ms": "p50 ITL, ms",
    "p99_itl_ms": "p99 ITL, ms",
    "goodput": "answers within the SLO, %",
    "tokens_per_s": "tokens/s",
}
#: Shares and rates begin at zero; latencies, which differ by orders, are on a scale of logarithms.
LINEAR = frozenset({"goodput", "tokens_per_s"})
PANEL_INCHES = (2.3, 1.9)


def save_curves(path: Path, cells: Sequence[Cell]) -> None:
    """Write one SVG. The same cells give the same file."""
    workloads = list(dict.fromkeys(cell.workload for cell in cells))
    width, height = PANEL_INCHES
    # Each text names all fonts of the list.
    fonts: dict[Any, Any] = {"font.size": 8, "font.sans-serif": ["DejaVu Sans"]}
    with mpl.rc_context({"svg.hashsalt": path.name, "svg.fonttype": "none", **fonts}):
        figure = Figure(
            figsize=(len(PANELS) * width, len(workloads) * height + 0.4), layout="constrained"
        )
        FigureCanvasSVG(figure)
        axes = figure.subplots(len(workloads), len(PANELS), squeeze=False)
        for line, workload in zip(axes, workloads, strict=True):
            own = sorted((c for c in cells if c.workload == workload), key=lambda c: c.load)
            for ax, (metric, title) in zip(line, PANELS.items(), strict=True):
                _draw(ax, own, metric, f"{workload}: {title}")
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=5, frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})


def _draw(ax: Axes, cells: Sequence[Cell], metric: str, title: str) -> None:
    systems = list(dict.fromkeys(name for cell in cells for name in cell.means))
    grey = iter(OTHERS)
    factor = 100.0 if metric == "goodput" else 1.0
    for system in systems:
        points = [(c.load, factor * c.means[system][metric]) for c in cells if system in c.means]
        ax.plot(
            [load for load, _ in points],
            [value for _, value in points],
            marker="o",
            markersize=2.5,
            linewidth=1.6 if system == ELASTIC else 1.1,
            color=COLOURS.get(system) or next(grey, INK),
            label=system,
        )
    ax.set_title(title, loc="left", fontsize=7, color=INK)
    ax.set_xlim(left=0)
    ax.xaxis.set_major_locator(MaxNLocator(3))
    if metric in LINEAR:
        ax.set_ylim(bottom=0)
    else:
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        ax.yaxis.set_minor_locator(NullLocator())
    ax.grid(alpha=0.25, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=6)
