"""A whole run: the limits, then each part within its share of the time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.peers.engines.systems import Launch
from benchmarks.peers.formats import model_path
from benchmarks.peers.machine.description import measured_cores
from benchmarks.peers.machine.limits import higher, measure_limits
from benchmarks.peers.measures import METRICS
from benchmarks.peers.models import adapter_folders, dtype_of, max_model_len
from benchmarks.peers.places import LOGS
from benchmarks.peers.report.tables import is_ours
from benchmarks.peers.run.budget import plan_repetitions, plan_units
from benchmarks.peers.run.rotation import Rotation
from benchmarks.peers.run.selection import ALL
from benchmarks.peers.serving.measures import INTERFERENCE_METRICS, RATE_METRICS
from benchmarks.peers.statistics import best

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.peers.measures import Measure
    from benchmarks.peers.results import Results
    from benchmarks.peers.run.selection import Part

EVERY_METRIC = METRICS | INTERFERENCE_METRICS | RATE_METRICS


class Runner:
    """Fills `results`. `note` is told what happens; `save` is called after every part."""

    def __init__(
        self, results: Results, *, note: Callable[[str], None], save: Callable[[], None]
    ) -> None:
        self._results = results
        self._note = note
        self._save = save

    def run(
        self,
        parts: Sequence[Part],
        *,
        repetitions: int,
        budget_s: float | None,
        limits_twice: bool = True,
    ) -> None:
        """Measure every part. Without a budget, everything `repetitions` times."""
        started_s = time.monotonic()
        models = list(dict.fromkeys(part.model for part in parts))
        self._measure_limits(models)
        for number, part in enumerate(parts):
            deadline_s = None
            if budget_s is not None:
                left_s = started_s + budget_s - time.monotonic()
                shares = [later.share for later in parts[number:]]
                deadline_s = time.monotonic() + left_s * shares[0] / sum(shares)
            try:
                self._run_part(part, repetitions, deadline_s)
            finally:  # what was measured before an interruption is kept
                self._save()
        if limits_twice:
            self._measure_limits(models)
            self._save()

    def _measure_limits(self, models: Sequence[str]) -> None:
        """Measure limits, before and after the rest: other processes may disturb one of the two."""
        self._note("limits of this machine")
        limits = measure_limits(models, measured_cores())
        self._results.limits = higher(self._results.limits, limits)

    def _run_part(self, part: Part, repetitions: int, deadline_s: float | None) -> None:
        with Rotation(part.model, self._results, self._note) as rotation:
            launch = Launch(
                model=model_path(part.model),
                cores=measured_cores(),
                folder=LOGS,
                max_model_len=max_model_len(part.model),
                dtype=dtype_of(part.model),
                adapters=adapter_folders(part.model),
            )
            for name in part.systems:
                rotation.load(ALL[name](), launch)
            visited = [m for m in part.measures if self._first(part, rotation, m, deadline_s)]
            planned = self._plan(part, visited, rotation, repetitions, deadline_s)
            for repetition in range(1, repetitions):
                for measure in visited:
                    names = [
                        name
                        for name in rotation.names
                        if planned.get((measure.name, name), 0) > repetition
                    ]
                    rotation.visit(measure, names, repetition)

    def _first(
        self, part: Part, rotation: Rotation, measure: Measure, deadline_s: float | None
    ) -> bool:
        """The first visits of a measure, unless the time is up."""
        if deadline_s is not None and time.monotonic() > deadline_s:
            self._results.omitted.append(f"{part.title}: {measure.name} (no time was left)")
            return False
        rotation.visit(measure, rotation.names, 0)
        return True

    def _plan(
        self,
        part: Part,
        visited: Sequence[Measure],
        rotation: Rotation,
        repetitions: int,
        deadline_s: float | None,
    ) -> dict[tuple[str, str], int]:
        systems = {
            measure.name: [name for name in rotation.names if rotation.takes(name, measure)]
            for measure in visited
        }
        leaders = {measure.name: self._leaders(part, measure) for measure in visited}
        units = plan_units([measure.name for measure in visited], systems, leaders)
        remaining_s = float("inf") if deadline_s is None else deadline_s - time.monotonic()
        return plan_repetitions(
            units, rotation.costs_s, remaining_s=max(0.0, remaining_s), repetitions=repetitions
        )

    def _leaders(self, part: Part, measure: Measure) -> list[str]:
        """Our systems without variants, and the best peer of the measure's first result."""
        metric = measure.metrics[0]
        row = self._results.summaries(part.section, part.model).get(metric, {})
        medians = {name: row[name].median for name in row if not is_ours(name)}
        rival = best(medians, higher_is_better=EVERY_METRIC[metric].higher_is_better)
        ours = [name for name in row if name in ("baton", "baton P/D")]
        return [*ours, rival] if rival else ours
