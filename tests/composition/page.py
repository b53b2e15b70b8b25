"""Writes docs/composition.md: which features meet each other, and which are refused.

`make composition` calls it when every row has passed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.composition.axes import AXES
from tests.composition.cover import rows, wanted
from tests.composition.rules import INEXACT, ROUNDED_KV, RULES, rule_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.composition.rules import Rule

PAGE = Path(__file__).parents[2] / "docs" / "composition.md"
INTRO = """# What goes together

Features are tested in pairs: each value of an axis below meets each value of every other axis in
at least one run on real processes. A run starts a router and the row's workers, asks the row's
request beside a plain one, changes or breaks what the row says, and compares every token, and
every vector that is made beside them, with one engine that does it all; adapters and vectors in
float32 with PEFT and transformers, too. A pair that cannot work is refused by name, at start or
with the request; no pair is passed over in silence.

`make composition` runs all rows and writes this page (`tests/composition/`); `make test` runs a
sample of them. A new feature is a value in `tests/composition/axes.py`, and a rule in `rules.py`
if something refuses it; `python -m tests.composition.cover` then finds the rows again.
"""
KEY = (
    "Pairs of values that are run; `−` counts those that are refused, `∅` those without a meaning "
    "together."
)


def page() -> str:
    """The text of the page."""
    facts = f"{len(rows())} runs cover {len(wanted())} pairs."
    refused = [rule for rule in RULES if rule.refused is not None]
    unmeant = [rule for rule in RULES if rule.refused is None]
    parts = (
        INTRO,
        facts,
        _axes(),
        _matrix(),
        _rules("Refused by name", refused),
        _rules("Equal up to a near tie", INEXACT),
        _rules("Log probabilities with the distance of rounding", ROUNDED_KV),
        _rules("Without a meaning together", unmeant),
    )
    return "\n".join(f"{part.strip()}\n" for part in parts)


def _axes() -> str:
    lines = ["## The axes", "", "| axis | values |", "|---|---|"]
    lines += [f"| {axis} | {' · '.join(values)} |" for axis, values in AXES.items()]
    return "\n".join(lines)


def _matrix() -> str:
    """How many pairs of values of two axes run, and how many are refused."""
    names = list(AXES)
    lines = [
        "## Pairs",
        "",
        KEY,
        "",
        f"| | {' | '.join(names[:-1])} |",
        f"|---|{'---|' * (len(names) - 1)}",
    ]
    for index, name in enumerate(names[1:], 1):
        cells = [_cell(other, name) for other in names[:index]]
        cells += [""] * (len(names) - 1 - index)
        lines.append(f"| **{name}** | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(first: str, second: str) -> str:
    found = [
        rule_of((first, value), (second, other)) for value in AXES[first] for other in AXES[second]
    ]
    cell = str(found.count(None))
    refused = sum(rule is not None and rule.refused is not None for rule in found)
    unmeant = len(found) - found.count(None) - refused
    cell += f" −{refused}" if refused else ""
    return cell + (f" ∅{unmeant}" if unmeant else "")


def _rules(title: str, rules: Iterable[Rule]) -> str:
    lines = [f"## {title}", "", "| | with | because |", "|---|---|---|"]
    for rule in rules:
        first, *others = (f"{axis}: {' · '.join(values)}" for axis, values in rule.sides)
        lines.append(f"| {first} | {', with '.join(others)} | {rule.reason} |")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
