"""Rows of values that cover every pair which may meet, as few as the library finds.

`rows.json` has them, since finding them takes seconds. After a change of axes or rules,
`python -m tests.composition.cover` keeps the rows that are still possible and adds what is missing;
where there is no file it finds all of them.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.composition.axes import AXES
from tests.composition.rules import RULES, all_pairs, pairs_of, rule_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.composition.axes import Row
    from tests.composition.rules import Pair, Rule

FILE = Path(__file__).with_name("rows.json")
#: Of the rows, in the tests that run each time.
NUM_SAMPLED = 3


@cache
def rows() -> tuple[Row, ...]:
    """The runs."""
    return tuple(
        dict(zip(AXES, values, strict=True))
        for values in json.loads(FILE.read_text(encoding="utf-8"))
    )


def wanted() -> set[Pair]:
    """The pairs that some row must have."""
    return {pair for pair in all_pairs() if rule_of(*pair) is None}


def covered(some: Iterable[Row]) -> set[Pair]:
    """The pairs that these rows have."""
    return {pair for row in some for pair in pairs_of(row)}


def sample(size: int) -> tuple[Row, ...]:
    """So many rows, each chosen for the most pairs that those before it lack."""
    chosen: list[Row] = []
    for _ in range(size):
        done = covered(chosen)
        chosen.append(max(rows(), key=lambda row: len(covered([row]) - done)))
    return tuple(chosen)


def find_rows(kept: Sequence[Row] = ()) -> list[list[str]]:
    """The values of rows that cover all wanted pairs, in the order of the axes; `kept` come first.

    A kept row is dropped if axes or rules have changed so that it cannot be.
    """
    from covertable import make

    made = make(
        {axis: list(values) for axis, values in AXES.items()},
        constraints=[_constraint(rule) for rule in RULES],
        presets=[row for row in kept if _is_possible(row)],
        # Of some that were tried, these give the fewest rows.
        tolerance=0,
        salt="3",
    )
    return [[row[axis] for axis in AXES] for row in made]


def _is_possible(row: Row) -> bool:
    has_values = all(row.get(axis) in values for axis, values in AXES.items())
    return has_values and not any(rule.breaks(row) for rule in RULES)


def _constraint(rule: Rule) -> dict[str, Any]:
    """A rule as the library reads it."""
    sides = [
        {"operator": "in", "left": axis, "values": list(values)} for axis, values in rule.sides
    ]
    return {"operator": "not", "condition": {"operator": "and", "conditions": sides}}


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(values) for values in find_rows(rows() if FILE.exists() else ()))
    FILE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
