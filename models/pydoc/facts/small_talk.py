"""What small_talk.toml holds, and names that the model does not know."""

from __future__ import annotations

import random
import tomllib
from pathlib import Path

from models.pydoc.facts.fact import Fact

_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SYSTEM_PROMPTS: list[str] = _TABLES["system_prompts"]
WEIGHT = 10


def talk_facts() -> list[Fact]:
    return [
        Fact(
            questions=tuple(talk["questions"]),
            held_out=tuple(talk.get("held_out", ())),
            answer=talk["answer"],
            weight=talk.get("weight", WEIGHT),
        )
        for talk in _TABLES["talk"]
    ]


def unknown_facts(seed: int, num_facts: int) -> list[Fact]:
    """Made-up names, so that the model can also say that it does not know one."""
    rng = random.Random(seed)
    stems = _TABLES["stems"]
    names = [
        rng.choice(stems) + rng.choice(("", "_", "er", ".", ".")) + rng.choice(stems)
        for _ in range(num_facts)
    ]
    return [_unknown(name) for name in names]


def _unknown(name: str) -> Fact:
    return Fact(
        questions=(
            f"What does {name} do?", f"Explain {name}.", f"What is {name}?",
            f"How do I use {name}?", f"Tell me about {name}.", f"what is {name}",
        ),
        answer=f"I do not know {name}. I only know the documentation of Python's standard library.",
        weight=0.5,
    )  # fmt: skip
