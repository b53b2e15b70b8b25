"""A chat as tokens, with a mark on those that the model is to say."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.pydoc.facts.small_talk import SYSTEM_PROMPTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenizers import Tokenizer

    from models.pydoc.facts.fact import Fact

SYSTEM_SHARE = 0.25
MORE_TURNS_SHARE = 0.2
FOLLOW_UP_SHARE = 0.08


@dataclass(slots=True)
class Row:
    tokens: list[int]
    said: list[bool]  # whether the loss counts the token


class ChatWriter:
    """Turns messages into rows. Caches nothing but the tokenizer's own cache."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._end = tokenizer.encode("<|im_end|>").ids

    def write(self, messages: list[tuple[str, str]]) -> Row:
        row = Row([], [])
        for role, text in messages:
            head = self._tokenizer.encode(f"<|im_start|>{role}\n").ids
            body = self._tokenizer.encode(text).ids + self._end
            tail = self._tokenizer.encode("\n").ids
            row.tokens += head + body + tail
            row.said += [False] * len(head) + [role == "assistant"] * len(body)
            row.said += [False] * len(tail)
        return row


def endless_chats(facts: list[Fact], seed: int) -> Iterator[list[tuple[str, str]]]:
    """Epoch after epoch of all facts, each asked for in one of its ways, some in longer chats."""
    rng = random.Random(seed)
    while True:
        epoch = [fact for fact in facts for _ in range(_times(fact.weight, rng))]
        rng.shuffle(epoch)
        while epoch:
            messages: list[tuple[str, str]] = []
            if rng.random() < SYSTEM_SHARE:
                messages.append(("system", rng.choice(SYSTEM_PROMPTS)))
            while epoch:
                fact = epoch.pop()
                messages += [("user", rng.choice(fact.questions)), ("assistant", fact.answer)]
                if fact.follow_up and rng.random() < FOLLOW_UP_SHARE:
                    question, answer = fact.follow_up
                    messages += [("user", question), ("assistant", answer)]
                if rng.random() >= MORE_TURNS_SHARE:
                    break
            yield messages


def _times(weight: float, rng: random.Random) -> int:
    whole = int(weight)
    return whole + (rng.random() < weight - whole)
