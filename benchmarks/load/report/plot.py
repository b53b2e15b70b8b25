"""A picture of a run: how latencies are distributed, and output over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from benchmarks.load.metrics import latencies_s, token_rates

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from benchmarks.load.outcome import Outcome

BLUE, RED, GREY = "#2563a8", "#c0392b", "#6b7280"
PANELS = {"ttft": "Time to first token", "itl": "Inter-token latency", "e2el": "End to end"}
MARKS = {50: ":", 90: "-.", 99: "--"}
# A wider spread than this hides the body of the distribution on a linear axis.
LOG_SPREAD = 20.0
MAX_BINS = 120


def save_plot(
    outcomes: Sequence[Outcome],
    path: Path,
    *,
    title: str,
    mean_tokens_per_s: float,
    slos_ms: Mapping[str, float],
) -> None:
    """Draw the successful requests, at least one. Objectives are red lines."""
    done = [outcome for outcome in outcomes if outcome.success]
    figure = Figure(figsize=(11, 7.2), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=12, fontweight="bold", x=0.012, ha="left")
    axes = figure.subplots(2, 2)
    latencies = latencies_s(done)
    for ax, (name, heading) in zip(axes.flat, PANELS.items(), strict=False):
        _draw_cdf(ax, np.array(latencies[name]) * 1000, heading, slos_ms.get(name))
    _draw_throughput(axes.flat[3], done, mean_tokens_per_s)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25, linewidth=0.6)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def _draw_cdf(ax: Axes, values_ms: np.ndarray, heading: str, slo_ms: float | None) -> None:
    ax.set_title(heading, loc="left", fontsize=10)
    ax.set_xlabel("ms")
    ax.set_ylabel("share at or below")
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.set_ylim(0, 1.02)
    if not values_ms.size:
        ax.text(0.5, 0.5, "no values", transform=ax.transAxes, ha="center", color=GREY)
        return
    values_ms = np.sort(values_ms)
    ax.ecdf(values_ms, color=BLUE, linewidth=1.8)
    _scale(ax, values_ms)
    for percentile, style in MARKS.items():
        at_ms = float(np.percentile(values_ms, percentile))
        ax.axvline(
            at_ms, color=GREY, linewidth=1, linestyle=style, label=f"P{percentile} {_ms(at_ms)} ms"
        )
    if slo_ms is not None:
        share = float((values_ms <= slo_ms).mean())
        ax.axvline(
            slo_ms, color=RED, linewidth=1.4, label=f"objective {_ms(slo_ms)} ms: {share:.1%}"
        )
    ax.legend(loc="lower right", fontsize=8, framealpha=1.0)


def _scale(ax: Axes, values_ms: np.ndarray) -> None:
    positive = values_ms[values_ms > 0]
    if positive.size and np.percentile(positive, 99.9) > LOG_SPREAD * np.median(positive):
        ax.set_xscale("log")
        # Chunks that arrived together have a gap of almost nothing; they would fill the axis.
        ax.set_xlim(left=max(float(positive[0]), float(np.median(positive)) / 100))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        ax.set_xlim(left=0)


def _draw_throughput(ax: Axes, done: Sequence[Outcome], mean_tokens_per_s: float) -> None:
    heading = f"Output over time (dashed: mean of the run, {mean_tokens_per_s:,.0f} tokens/s)"
    ax.set_title(heading, loc="left", fontsize=10)
    ax.set_xlabel("s since the first request")
    ax.set_ylabel("tokens/s")
    first_s = min(outcome.start_s for outcome in done)
    duration_s = max(outcome.start_s + outcome.latency_s for outcome in done) - first_s
    bin_s = max(duration_s / MAX_BINS, min(1.0, duration_s / 20))
    starts, rates = token_rates(done, bin_s=bin_s)
    ax.stairs(rates, [*starts, starts[-1] + bin_s], fill=True, color=BLUE, alpha=0.35)
    ax.stairs(rates, [*starts, starts[-1] + bin_s], color=BLUE, linewidth=1.2)
    ax.axhline(mean_tokens_per_s, color=GREY, linewidth=1, linestyle="--")
    ax.set_xlim(0, starts[-1] + bin_s)
    ax.set_ylim(bottom=0)


def _ms(value_ms: float) -> str:
    return f"{value_ms:,.0f}" if value_ms >= 100 else f"{value_ms:.3g}"
