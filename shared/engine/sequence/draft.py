"""Draft tokens of a sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence as Seq

    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft. It may be shorter than requested, and empty."""

    token_ids: Seq[int] = ()
    #: float32 [len(token_ids), vocab]: the distribution that each token was drawn from, as
    #: probabilities that sum to 1. Tokens must have been drawn with `Purpose.DRAFT` of
    #: `sampler.random`, at the token's own position. None: they were not drawn but chosen (the most
    #: likely ones, or copied). Then a seeded answer is the same with and without speculation, so
    #: prefer that. Ignored for greedy sequences.
    probs: Tensor | None = None


NO_DRAFT = Draft()
