"""The interface of a model that reads whole texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TextBatch:
    """Some texts, one behind the other, without padding."""

    #: int64 [num_tokens]
    token_ids: Tensor
    #: int64 [num_tokens]: from 0 on in each text.
    positions: Tensor
    #: Tokens of each text, all at least 1. Equal ones beside each other are computed together.
    lengths: Sequence[int]
    #: int64 [num_tokens]: the part of its text that a token belongs to; None: the first.
    token_types: Tensor | None = None


class TextEncoder(Protocol):
    """A model that reads whole texts. One thread at a time."""

    @property
    def hidden_size(self) -> int:
        """Numbers in a state."""
        ...

    @property
    def max_len(self) -> int:
        """Most tokens of a text."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of tokens that it has embeddings for."""
        ...

    @property
    def num_token_types(self) -> int:
        """Parts of a text that it tells apart; 0: it tells none."""
        ...

    def encode(self, batch: TextBatch) -> Tensor:
        """Return the states behind the last layer and its norm, [num_tokens, hidden], the caller's.

        Those of a text do not depend on the other texts but by rounding.
        """
        ...
