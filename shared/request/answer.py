"""What an answer consists of, besides its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence, Sized


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    REPETITION = "repetition"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One candidate token. `rank` counts from 1."""

    token_id: int
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """The chosen token of one position and the most likely alternatives, best first."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...] = ()


class Candidates(Protocol):
    """A position with alternatives: a record here, a message, or what a client gets."""

    @property
    def top(self) -> Sized:
        """The alternatives."""
        ...


def num_candidates(positions: Sequence[Candidates | None]) -> int:
    """Return how many log probabilities these positions have, if all have as many as the last."""
    last = positions[-1] if positions else None
    return 0 if last is None else len(positions) * (1 + len(last.top))
