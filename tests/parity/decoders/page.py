"""Writes docs/decoders.md from the stored results."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import transformers

from shared.model.families.registry import ARCHITECTURES
from tests.parity.cells import REFUSED
from tests.parity.decoders.trial import FAMILY, MODULE, UNTRIED

FILE = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parents[3] / "docs" / "decoders.md"
INTRO = """# Decoders of transformers

What computes each causal model type of transformers {version}, found by a small random model of
it, in float32: its answers are compared with the module's own, token by token, in one engine, from
a prefill worker to a decode worker, from tiers, and behind a lost worker, as in
[parity](parity.md). Of a type whose sizes cannot be made small, its default config is judged.
`make decoders` runs them and writes this page.

- **family**: Baton's own description, with both executors: [models](models.md).
- **module**: transformers' module over paged KV (`--model-impl transformers`, which is the default
  for what is no family).
- **refused**: at start, with the reason. Nothing answers otherwise than transformers does.
"""


def stored_results() -> dict[str, str]:
    """By model type, as of the last run."""
    found: dict[str, str] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def page() -> str:
    """Return the text of the page."""
    found = stored_results()
    by: dict[str, list[str]] = defaultdict(list)
    for name, result in sorted(found.items()):
        by[result].append(f"`{name}`")
    refused = {why: names for why, names in by.items() if why.startswith(REFUSED)}
    others = {why: names for why, names in by.items() if why.startswith(UNTRIED)}
    num_refused, num_others = (sum(map(len, each.values())) for each in (refused, others))
    counts = (
        f"{len(found)} model types: {len(by[FAMILY])} families, {len(by[MODULE])} by their "
        f"modules, {num_refused} refused, {num_others} not tried."
    )
    further = sorted(f"`{name}`" for name in ARCHITECTURES.keys() - found.keys())
    lines = [
        INTRO.format(version=transformers.__version__.rpartition(".")[0]),
        counts,
        "",
        f"**Families**: {' '.join(by[FAMILY])}",
        "",
        f"**By their modules**: {' '.join(by[MODULE])}",
        "",
    ]
    if further:
        lines += [f"**Families that are no model type of transformers**: {' '.join(further)}", ""]
    lines += [*_table("refused because", refused, REFUSED), ""]
    if others:
        lines += [*_table("no small model could be made", others, UNTRIED), ""]
    return "\n".join(lines)


def _table(head: str, rows: dict[str, list[str]], mark: str) -> list[str]:
    largest_first = sorted(rows.items(), key=lambda row: (-len(row[1]), row[0]))
    return [
        f"| {head} | model types |",
        "|---|---|",
        *(f"| {why.removeprefix(mark)} | {' '.join(names)} |" for why, names in largest_first),
    ]
