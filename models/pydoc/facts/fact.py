"""A fact: one answer, and the ways to ask for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    questions: tuple[str, ...]
    answer: str
    # How often an epoch shows it; a fraction is the chance of being shown.
    weight: float = 1.0
    # Phrasings the training never sees.
    held_out: tuple[str, ...] = ()
    # Asked only after the fact itself ("How do I call it?"), with the answer to that.
    follow_up: tuple[str, str] | None = None
