"""Elastic against the better of both fixed shapes, number by number, and the bars it must reach."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from services.router.routing.places.mode import PlacementMode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.pareto.results import Row

ELASTIC = PlacementMode.ELASTIC.value
FIXED = (PlacementMode.AGGREGATED.value, PlacementMode.DISAGGREGATED.value)
MODES = (*FIXED, ELASTIC)
LATENCIES = ("mean_ttft_ms", "p99_ttft_ms", "p99_itl_ms")
MOST = 1.05
SHIFTING = "shift"
#: Goodput on the shifting load, where the better fixed shape leaves room for it.
LEAST_SHIFTING = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One workload at one load: means over the repetitions, by system."""

    workload: str
    load: float
    means: dict[str, dict[str, float]]
    num_repetitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Elastic over the better of both fixed shapes. `bar`: at most, or for goodput at least."""

    metric: str
    value: float
    bar: float

    @property
    def is_missed(self) -> bool:
        """Whether it is on the wrong side."""
        if self.metric == "goodput":
            return self.value < self.bar
        return self.value > self.bar


AVERAGED = (
    "offered", "mean_ttft_ms", "p99_ttft_ms", "mean_itl_ms", "p50_itl_ms", "p99_itl_ms", "goodput",
    "tokens_per_s", "num_requests", "num_failed",
)  # fmt: skip


def cells(rows: Iterable[Row]) -> list[Cell]:
    """Group the rows. A repetition counts if all three modes have it."""
    by_cell: dict[tuple[str, float], dict[int, dict[str, Row]]] = {}
    for row in rows:
        repetitions = by_cell.setdefault((row.workload, row.load), {})
        repetitions.setdefault(row.repetition, {})[row.system] = row
    found = []
    for (workload, load), repetitions in by_cell.items():
        whole = [r for r in repetitions.values() if all(mode in r for mode in MODES)]
        if whole:
            means = {
                system: _means([r[system] for r in whole if system in r])
                for system in dict.fromkeys(system for r in whole for system in r)
            }
            found.append(
                Cell(workload=workload, load=load, means=means, num_repetitions=len(whole))
            )
    return found


def ratios(cell: Cell) -> list[Ratio]:
    """Return one for each metric that has a bar."""
    fixed = [cell.means[mode] for mode in FIXED]
    elastic = cell.means[ELASTIC]
    found = [
        Ratio(
            metric=metric,
            # 0: it answered nothing.
            value=_over(elastic[metric], min((e[metric] for e in fixed if e[metric]), default=0.0)),
            bar=MOST,
        )
        for metric in LATENCIES
    ]
    better = max(each["goodput"] for each in fixed)
    is_wide = cell.workload == SHIFTING and better * LEAST_SHIFTING <= 1.0
    bar = LEAST_SHIFTING if is_wide else 1.0
    value = _over(elastic["goodput"], better)
    return [*found, Ratio(metric="goodput", value=value, bar=bar)]


def _over(mine: float, other: float) -> float:
    if other == 0.0:
        return 1.0 if mine == 0.0 else math.inf
    return mine / other


def _means(rows: Sequence[Row]) -> dict[str, float]:
    found = {name: fmean(getattr(row, name) for row in rows) for name in AVERAGED}
    found["others"] = max(row.others for row in rows)
    placed = [row.places for row in rows if row.places is not None]
    for name in ("here", "handed_over", "split"):
        if placed:
            found[name] = fmean(getattr(each, name) for each in placed)
    return found
