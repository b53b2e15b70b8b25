"""Writes docs/side_by_side.md: how many answers are the same, and why the others differ."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from tests.side_by_side.rules import RULES, rule_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.side_by_side.difference import Difference
    from tests.side_by_side.recording import Recording
    from tests.side_by_side.rule import Rule

PAGE = Path(__file__).parents[2] / "docs" / "side_by_side.md"
_HEAD = """# Baton beside vLLM

The same requests to `vllm serve` and to `baton serve` on the shipped model, in float32 and with the
same flags. Written by `make side-by-side`, which fails on a difference without a reason. Last run:
{date}, vLLM {version}.

Every [field](fields.md) of every generating endpoint is sent with a good value, one of another
type, null, a number as a string, and one that must not be, some in a stream; every other endpoint
with a good body and wrong ones. Compared are the status, the media type, the types at each path of
the JSON (of each kind of event, in a stream), `type`, `code` and `param` of errors, and the text of
greedy answers. vLLM's answers are recorded in `tests/side_by_side/recorded.json`, and
`tests/integration/router/openai/test_side_by_side.py` holds Baton to them.

Of the requests that differ, *keys* do so in keys alone: those that one of the two has beside the
other's, or leaves out as null. *status*: another status. *other*: words of errors, types, texts.

| endpoint | requests | same | keys | status | other |
|---|---:|---:|---:|---:|---:|
"""
#: From nothing to most.
_KINDS = ("same", "keys", "status", "other")
_RULES = """
## Reasons

A request may differ in several ways. `-` stands for what one of the two does not have.

| why | requests | for example |
|---|---:|---|
"""


def page(recording: Recording, found: Sequence[Difference]) -> str:
    """Return the whole page."""
    head = _HEAD.format(date=recording.date, version=recording.version)
    counts, reasons = _counts(recording, found), _reasons(recording, found)
    return head + "\n".join(counts) + f"\n{_RULES}" + "\n".join(reasons) + "\n"


def _counts(recording: Recording, found: Sequence[Difference]) -> Iterator[str]:
    kinds = dict.fromkeys(recording.answers, "same")
    for each in found:
        kind = _kind(each, recording)
        if _KINDS.index(kind) > _KINDS.index(kinds[each.key]):
            kinds[each.key] = kind
    by_endpoint: dict[str, Counter[str]] = defaultdict(Counter)
    for key, kind in kinds.items():
        by_endpoint[f"`{_endpoint(key)}`"][kind] += 1
        by_endpoint["all"][kind] += 1
    total = by_endpoint.pop("all")
    for endpoint, counts in (*by_endpoint.items(), ("all", total)):
        cells = " | ".join(str(counts[kind]) for kind in _KINDS)
        yield f"| {endpoint} | {counts.total()} | {cells} |"


def _kind(found: Difference, recording: Recording) -> str:
    if found.aspect == "status":
        return "status"
    rule = rule_of(found, recording.fields)
    return "keys" if rule is not None and rule.is_of_keys else "other"


def _reasons(recording: Recording, found: Sequence[Difference]) -> Iterator[str]:
    by_rule: dict[Rule, list[Difference]] = defaultdict(list)
    for each in found:
        rule = rule_of(each, recording.fields)
        if rule is not None:
            by_rule[rule].append(each)
    for rule in RULES:
        if of := by_rule.get(rule):
            number = len({each.key for each in of})
            yield f"| {rule.reason}{_fields(rule, of)} | {number} | {_example(of[0])} |"


def _fields(rule: Rule, found: Sequence[Difference]) -> str:
    """Return the fields of a rule that names them, each once."""
    if not rule.names_fields:
        return ""
    names = sorted({each.field for each in found} - {"-"})
    return f" ({', '.join(f'`{name}`' for name in names)})" if names else ""


def _example(found: Difference) -> str:
    text = f"`{found.key}`: {found.aspect} `{_cut(found.vllm)}`, here `{_cut(found.baton)}`"
    return text.replace("|", "\\|")


def _cut(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"


def _endpoint(key: str) -> str:
    return " ".join(key.split(" ", 2)[:2]).partition("?")[0]
