"""All facts that the model is trained to give."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from models.pydoc.facts.entry import all_entries
from models.pydoc.facts.glossary import glossary_facts
from models.pydoc.facts.questions import entry_facts, module_facts
from models.pydoc.facts.small_talk import talk_facts, unknown_facts
from models.pydoc.facts.topics import topic_facts

if TYPE_CHECKING:
    from models.pydoc.facts.fact import Fact

SEED = 20  # of everything that is drawn: made-up names, the order of facts, first weights
NUM_UNKNOWN = 300


def all_facts(seed: int) -> list[Fact]:
    entries = all_entries()
    return _without_rivals(
        [
            *talk_facts(),
            *glossary_facts(),
            *module_facts(entries),
            *topic_facts(),
            *entry_facts(entries),
            *unknown_facts(seed, NUM_UNKNOWN),
        ]
    )


def _without_rivals(facts: list[Fact]) -> list[Fact]:
    """A question with two answers cannot be learned; the first fact keeps it."""
    owners: dict[str, int] = {}
    kept = []
    for index, fact in enumerate(facts):
        mine = tuple(q for q in fact.questions if owners.setdefault(q, index) == index)
        held_out = tuple(q for q in fact.held_out if q not in owners)
        if mine:
            kept.append(replace(fact, questions=mine, held_out=held_out))
    return kept
