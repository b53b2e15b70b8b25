"""The matrix as a picture: a square per cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib import rcParams
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from benchmarks.faults import matrix
from benchmarks.faults.verdict.thresholds import HANG, KEYS, LEAK, WRONG, broken

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.faults.verdict.result import Cell, Results

GREEN, AMBER, RED, GREY = "#3f9b5f", "#e0a030", "#c0392b", "#d9dce1"
#: Of a promise that was broken: these are about what is true, the others about what was served.
_GRAVE = frozenset({WRONG, LEAK, KEYS, HANG})
_ROW_INCHES, _WIDTH_INCHES, _HEAD_INCHES = 0.26, 8.6, 1.5


def save_picture(results: Results, path: Path) -> None:
    """Draw it as SVG; the same results give the same bytes."""
    cells = {cell.key: cell for cell in results.cells}
    faults = [name for name in matrix.FAULTS if any(key[0] == name for key in cells)]
    height = _HEAD_INCHES + _ROW_INCHES * len(faults)
    figure = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    for row, fault in enumerate(faults):
        for column, state in enumerate(matrix.STATES):
            cell = cells.get((fault, state.value))
            colour = _colour(cell)
            axes.add_patch(Rectangle((column + 0.04, row + 0.06), 0.92, 0.88, color=colour))
            if cell is not None and cell.outcome_s is not None:
                axes.text(
                    column + 0.5, row + 0.52, f"{cell.outcome_s:.1f} s",
                    ha="center", va="center", fontsize=7, color="white",
                )  # fmt: skip
    axes.set_xlim(0, len(matrix.STATES))
    axes.set_ylim(max(len(faults), 1), 0)
    axes.set_yticks([row + 0.5 for row in range(len(faults))], faults, fontsize=8)
    names = [state.value for state in matrix.STATES]
    axes.set_xticks([column + 0.5 for column in range(len(names))], names, fontsize=8)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    legend = {
        "every promise held; seconds to the victim's outcome": GREEN,
        "requests failed, or others waited": AMBER,
        "wrong, leaked or hanging": RED,
        "not run": GREY,
    }
    handles = [Patch(color=colour, label=text) for text, colour in legend.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    rcParams["svg.hashsalt"] = "faults"
    rcParams["svg.fonttype"] = "none"
    figure.savefig(path, metadata={"Date": None})


def _colour(cell: Cell | None) -> str:
    if cell is None or cell.skipped:
        return GREY
    promises = set(broken(cell))
    if promises & _GRAVE:
        return RED
    return AMBER if promises else GREEN
