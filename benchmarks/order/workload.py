"""Many short prompts and a few long ones, and what became of them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Mix:
    """Lengths of prompts, in tokens."""

    short: tuple[int, int] = (50, 400)
    long: tuple[int, int] = (10_000, 20_000)
    share_long: float = 0.05

    def draw(self, num: int, seed: int) -> list[int]:
        """Return the lengths of so many prompts."""
        rng = random.Random(seed)
        return [
            rng.randint(*(self.long if rng.random() < self.share_long else self.short))
            for _ in range(num)
        ]

    def is_long(self, num_tokens: int) -> bool:
        """Whether a prompt of this length is one of the long ones."""
        return num_tokens >= self.long[0]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A prompt, and when it comes."""

    at_s: float
    num_tokens: int


def arrivals(lengths: Sequence[int], *, work_s: float, load: float, seed: int) -> list[Arrival]:
    """Let the prompts, whose computation takes `work_s`, come at random with this load."""
    rng = random.Random(seed)
    mean_s = work_s / load / len(lengths)
    found, at_s = [], 0.0
    for num_tokens in lengths:
        at_s += rng.expovariate(1 / mean_s)
        found.append(Arrival(at_s, num_tokens))
    return found


@dataclass
class Waits:
    """Seconds from each prompt's arrival to its first token."""

    short_s: list[float] = field(default_factory=list)
    long_s: list[float] = field(default_factory=list)
    #: Time for which something was computed.
    busy_s: float = 0.0

    @property
    def columns(self) -> tuple[float, float, float, float, float]:
        """Mean and 95th percentile of the short ones; mean, 95th percentile and longest wait of
        the long ones.
        """
        return (
            fmean(self.short_s),
            _percentile(self.short_s, 0.95),
            fmean(self.long_s),
            _percentile(self.long_s, 0.95),
            max(self.long_s),
        )


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
