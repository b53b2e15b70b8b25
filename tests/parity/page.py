"""Writes docs/parity.md from the stored outcomes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tests.parity.cells import CASES, EQUAL, EXECUTORS, PRECISIONS, REFUSED, stored_outcomes

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE = Path(__file__).parents[2] / "docs" / "parity.md"
INTRO = """# Parity with transformers

Every configuration below is a small random model of transformers with odd sizes. Its answers are
compared with the module's own, token by token: prompts of one token, around a block and around a
window, of three windows and of three chunks. A cell has four places:

- **one engine**: chunks, prefixes from the pool, two answers to one prompt, a second turn; with
  drafts (n-grams) and with so few blocks that sequences are preempted;
- **handed over**: prefilled by one worker and decoded by another, a second turn, and a prefix that
  a worker fetches from a peer;
- **from tiers**: prefixes that have left the pool, from host memory, and after a restart from disk;
- **worker lost**: the decode worker is lost in the midst of all answers, and another one goes on
  behind the tokens that are known, as the router asks for it.

Counters say that a prefix came from its place. The workers of a cell are whole ones, with engine,
connector and gRPC server, in one process: a loss closes these. Real processes are killed with one
model for each kind of layers: [what goes together](composition.md).

- In float32 every token is the module's most likely one, and logprobs differ by less than 1e-3.
- In bfloat16, and with int8 weights beside it, the limits are what the same rounding does to the
  module itself, since such random models amplify it. A token may be another one if its logit is
  below the largest by at most 4 times the largest difference; and of the tokens at least half as
  many are the most likely ones as the rounded module agrees on.

`=`: equal in all places. A number: refused, for the reason below the table.
`make parity` runs all cells and writes this page; `make test` runs some of them.
"""


def page() -> str:
    """Return the text of the page."""
    found = stored_outcomes()
    reasons: dict[str, int] = {}
    head = [f"{executor} {precision}" for executor in EXECUTORS for precision in PRECISIONS]
    lines = [f"| configuration | {' | '.join(head)} |", f"|---|{'---|' * len(head)}"]
    for case, cells in found.items():
        shown = [_cell(cells[key], reasons) for key in head]
        lines.append(f"| {case} | {' | '.join(shown)} |")
    counts = Counter(
        outcome.split(":")[0]
        for cells in found.values()
        for own in cells.values()
        for outcome in own
    )
    families = {CASES[case][0] for case in found}
    facts = (
        f"{len(families)} model types, {len(found)} configurations, {sum(counts.values())} cells: "
        + ", ".join(f"{counts[name]} {name}" for name in sorted(counts))
        + "."
    )
    notes = [f"{number}. {reason}" for reason, number in reasons.items()]
    return "\n".join([INTRO, facts, "", *lines, "", "Refused:", "", *notes, ""])


def _cell(own: Sequence[str], reasons: dict[str, int]) -> str:
    if set(own) == {EQUAL}:
        return "="
    refused = [outcome.removeprefix(REFUSED) for outcome in own if outcome.startswith(REFUSED)]
    if len(refused) < len(own):
        return "**differs**"
    return str(reasons.setdefault(refused[0], len(reasons) + 1))
