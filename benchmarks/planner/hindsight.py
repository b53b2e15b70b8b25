"""Fewest worker-seconds by a table of counts that is made with hindsight.

No planner knows the requests to come; this search runs them again and again. It shows how much of
a workload's worker-seconds can be saved at all by changing counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from services.router.planning.base import Counts, Limits
from services.router.planning.planner import Planner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cli.plan.simulation import Outcome
    from services.router.planning.base import Bounds, Decision, Observation
    from services.router.planning.speed import Speed

ENOUGH = 0.95
#: Segments whose counts are lowered together, the widest first.
WIDTHS = (8, 4, 2, 1)


@dataclass(frozen=True, slots=True)
class CountTable:
    """Counts by segments of equal length."""

    counts: tuple[Counts, ...]
    segment_s: float

    def at(self, at_s: float) -> Counts:
        """Return the counts of a moment; behind the last segment they stay."""
        return self.counts[min(int(at_s / self.segment_s), len(self.counts) - 1)]

    def lowered(self, first: int, width: int, counts: Counts) -> CountTable:
        """Return a table with fewer workers, by `counts`, in some segments; one of each kind is
        left.
        """
        changed = [
            Counts(max(1, each.prefill - counts.prefill), max(1, each.decode - counts.decode))
            if first <= number < first + width
            else each
            for number, each in enumerate(self.counts)
        ]
        return replace(self, counts=tuple(changed))


class Follower(Planner):
    """Wants what a table says, and orders workers early enough. Moves none."""

    def __init__(self, bounds: Bounds, table: CountTable, *, startup_s: float) -> None:
        super().__init__(bounds, Limits(max_workers=max(each.total for each in table.counts)))
        self._table = table
        self._startup_s = startup_s

    def look(self, seen: Observation, speed: Speed) -> Decision:
        """See Planner."""
        now, soon = self._table.at(seen.now_s), self._table.at(seen.now_s + self._startup_s)
        wanted = Counts(max(now.prefill, soon.prefill), max(now.decode, soon.decode))
        return replace(super().look(seen, speed), wanted=wanted, move=None)


def lowest(start: CountTable, run: Callable[[CountTable], Outcome]) -> tuple[CountTable, Outcome]:
    """Lower counts while enough requests meet the bounds.

    `run` serves all requests by a table. Returns a local minimum: none of the ranges of `WIDTHS`
    segments can do with one worker less.
    """
    table, best = start, run(start)
    while True:
        before = table
        for first, width, counts in _ranges(len(table.counts)):
            tried = table.lowered(first, width, counts)
            if tried == table:
                continue
            outcome = run(tried)
            if outcome.attainment >= ENOUGH and outcome.worker_s < best.worker_s:
                table, best = tried, outcome
        if table == before:
            return table, best


def _ranges(num_segments: int) -> Iterator[tuple[int, int, Counts]]:
    for width in WIDTHS:
        for first in range(0, num_segments, width):
            yield first, width, Counts(1, 0)
            yield first, width, Counts(0, 1)
