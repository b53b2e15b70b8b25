"""What clients ask for: prompts that share prefixes, greedy and seeded, with and without extras."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

VOCAB_SIZE = 300
FIRST_TOKEN_ID = 3
NUM_PREFIXES = 4
PREFIX_TOKENS = 64
VICTIM_PROMPT_TOKENS = 640
VICTIM_TOKENS = 48

#: What one in so many requests says beside its prompt.
_KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.9, "seed": 11},
    {"temperature": 0.8, "seed": 12, "presence_penalty": 0.7, "frequency_penalty": 0.4},
    {"temperature": 0.0, "repetition_penalty": 1.3},
    {"temperature": 0.9, "seed": 13, "top_k": 20, "top_p": 0.9},
    {"temperature": 0.7, "seed": 14, "n": 2},
)


@dataclass(frozen=True, slots=True)
class Expected:
    """One right answer."""

    token_ids: tuple[int, ...]


@dataclass(slots=True)
class Ask:
    """One request, and what an engine that does it all answers."""

    prompt: tuple[int, ...]
    params: dict[str, Any]
    expected: list[Expected] = field(default_factory=list)

    @property
    def n(self) -> int:
        """How many answers it wants."""
        return int(self.params.get("n", 1))


def load_asks(num_asks: int, seed: int = 0) -> list[Ask]:
    """The mix that all streams ask over and over."""
    rng = random.Random(seed)
    prefixes = [_tokens(rng, PREFIX_TOKENS) for _ in range(NUM_PREFIXES)]
    asks = []
    for number in range(num_asks):
        prompt = prefixes[number % NUM_PREFIXES] + _tokens(rng, rng.choice((5, 17, 40, 100)))
        params = {"max_tokens": rng.choice((16, 24, 40)), "ignore_eos": True}
        asks.append(Ask(prompt, params | _KINDS[number % len(_KINDS)]))
    return asks


def victim_ask(number: int) -> Ask:
    """A long prompt in no cache, seeded: a wrong replay cannot be right by chance."""
    rng = random.Random(f"victim-{number}")
    params = {"max_tokens": VICTIM_TOKENS, "ignore_eos": True}
    return Ask(_tokens(rng, VICTIM_PROMPT_TOKENS), params | _KINDS[(1, 2, 0)[number % 3]])


def _tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(FIRST_TOKEN_ID, VOCAB_SIZE) for _ in range(count))
