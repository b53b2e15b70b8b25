"""Both loops: wanted counts by forecast, and one move at a time by what is there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from services.router.planning.base import Counts, Decision
from services.router.planning.capacity import Capacity, pressure_of
from services.router.planning.counts import CountPlanner, Pace
from services.router.planning.moves import COOLDOWN_S, MovePlanner

if TYPE_CHECKING:
    from services.router.planning.base import Bounds, Limits, Observation
    from services.router.planning.speed import Speed


class Planner:
    """Decides once per interval. The same observations give the same decisions."""

    def __init__(
        self,
        bounds: Bounds,
        limits: Limits,
        *,
        pace: Pace | None = None,
        move_cooldown_s: float = COOLDOWN_S,
    ) -> None:
        self._bounds = bounds
        self._counts = CountPlanner(limits, pace or Pace())
        self._moves = MovePlanner(cooldown_s=move_cooldown_s)

    def look(self, seen: Observation, speed: Speed) -> Decision:
        """Return the decision for an interval. `speed`: of a worker of the fleet."""
        wanted, planned, reason = self._counts.look(seen, speed, self._bounds)
        capacity = Capacity(speed, self._bounds, seen.demand)
        choice = self._moves.look(seen, capacity)
        return Decision(
            now_s=seen.now_s,
            demand=seen.demand,
            planned_per_s=planned,
            present=seen.counts,
            wanted=wanted,
            pressure=pressure_of(capacity, seen, seen.counts),
            reason=f"{reason}; {choice.reason}",
            move=choice.move,
            after=choice.after,
            warnings=tuple(capacity.warnings),
        )

    def begin(self, wanted: Counts, now_s: float) -> None:
        """Go on from what another planner wanted last."""
        self._counts.begin(wanted, now_s)

    def moved(self, at_s: float) -> None:
        """Take note of a move that was carried out."""
        self._moves.moved(at_s)


def best_split(num_workers: int, capacity: Capacity) -> Counts:
    """Return how to divide a number of workers, at least 2, so that the larger pressure is least.

    Of equal ones the more even split.
    """
    splits = [Counts(n, num_workers - n) for n in range(1, num_workers)]
    return min(
        splits,
        key=lambda split: (capacity.pressure(split).most, abs(split.prefill - split.decode)),
    )


def at_rate(capacity: Capacity, requests_per_s: float) -> Capacity:
    """Return the capacity for the same requests at another rate."""
    return replace(capacity, demand=replace(capacity.demand, requests_per_s=requests_per_s))
