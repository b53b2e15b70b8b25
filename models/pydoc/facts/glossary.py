"""Ways to ask for what glossary.toml answers: terms and tasks of the language itself."""

from __future__ import annotations

import tomllib
from pathlib import Path

from models.pydoc.facts.fact import Fact


def glossary_facts() -> list[Fact]:
    glossary = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    terms = [_term(term, answer) for term, answer in glossary["terms"].items()]
    return terms + [_how_to(task, answer) for task, answer in glossary["tasks"].items()]


def _term(term: str, answer: str) -> Fact:
    bare = term.removeprefix("a ").removeprefix("an ").removeprefix("the ")
    return Fact(
        questions=(
            f"What is {term}?", f"What is {term}?", f"What is {term} in Python?", f"what is {term}",
            f"What's {term}?", f"Explain {term}.", f"Explain {bare}.", f"Tell me about {term}.",
            f"What does {bare} mean?", f"Can you explain {term}?", f"Describe {term}.",
            f"What is {term}, and how do I use it?", f"{bare.capitalize()}?", f"Define {term}.",
        ),
        held_out=(f"Could you tell me what {term} is?", f"What exactly is {term}?"),
        answer=answer,
        weight=4,
    )  # fmt: skip


def _how_to(task: str, answer: str) -> Fact:
    return Fact(
        questions=(
            f"How do I {task}?", f"How do I {task} in Python?", f"How can I {task}?",
            f"how to {task}", f"What is the way to {task}?", f"I want to {task}.",
            f"Show me how to {task}.", f"How would you {task}?", f"How does one {task} in Python?",
        ),
        held_out=(f"Could you show me how to {task}?", f"What do I write to {task}?"),
        answer=answer,
        weight=4,
    )  # fmt: skip
