"""Which visits fit into the time that is left, once one of each has shown what they cost.

Ours and the best peer of a measure go together, because their ratio is what the benchmark is about,
and they are repeated in full before any other system is repeated at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Visit = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Unit:
    """Systems that are measured equally often, most important first among units."""

    measure: str
    systems: tuple[str, ...]


def plan_units(
    measures: Sequence[str],
    systems: Mapping[str, Sequence[str]],
    leaders: Mapping[str, Sequence[str]],
) -> list[Unit]:
    """Return the units: the leaders of each measure together, then the other systems one by one.

    `systems` and `leaders` are by measure.
    """
    first = [Unit(measure, tuple(leaders[measure])) for measure in measures if leaders[measure]]
    rest = [
        Unit(measure, (system,))
        for measure in measures
        for system in systems[measure]
        if system not in leaders[measure]
    ]
    return first + rest


def plan_repetitions(
    units: Sequence[Unit],
    costs_s: Mapping[Visit, float],
    *,
    remaining_s: float,
    repetitions: int,
) -> dict[Visit, int]:
    """How often each visit is made in all; every one was made once already."""
    planned: dict[Visit, int] = {}
    for unit in units:
        cost_s = sum(costs_s[unit.measure, name] for name in unit.systems)
        more = int(min(repetitions - 1, remaining_s / cost_s))
        remaining_s -= cost_s * more
        planned |= {(unit.measure, name): 1 + more for name in unit.systems}
    return planned
