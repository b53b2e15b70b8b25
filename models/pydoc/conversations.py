"""Writes what the model is asked: `python -m models.pydoc.conversations SEEN HELD_OUT`.

Two files for `baton quantize`: facts in phrasings that it was trained on, for calibration, and in
phrasings that it never saw, for perplexity.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

from models.pydoc.facts.corpus import SEED, all_facts

if TYPE_CHECKING:
    from collections.abc import Iterable

NUM_ASKED = 256


def sample_questions(num: int = NUM_ASKED) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Questions with their answers: seen ones, and held-out ones."""
    rng, facts = random.Random(0), all_facts(SEED)
    seen = rng.sample(facts, num)
    held_out = rng.sample([fact for fact in facts if fact.held_out], num)
    return (
        [(rng.choice(fact.questions), fact.answer) for fact in seen],
        [(rng.choice(fact.held_out), fact.answer) for fact in held_out],
    )


def write(path: Path, pairs: Iterable[tuple[str, str]]) -> None:
    """A conversation of two messages in each line."""
    with path.open("w", encoding="utf-8") as file:
        for question, answer in pairs:
            messages = [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ]
            file.write(json.dumps({"messages": messages}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seen", type=Path)
    parser.add_argument("held_out", type=Path)
    options = parser.parse_args()
    for path, pairs in zip((options.seen, options.held_out), sample_questions(), strict=True):
        write(path, pairs)


if __name__ == "__main__":
    main()
