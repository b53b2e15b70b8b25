"""Rows that take the place of tokens' embeddings in a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class GivenEmbeds:
    """The tokens of these rows have ids that mean nothing; their embeddings are never read."""

    #: int64 [n], ascending: the tokens' indexes in the step.
    at: Tensor
    #: float32 [n, width]
    rows: Tensor

    def placed_in(self, embeddings: Tensor) -> Tensor:
        """Return the embeddings [num_tokens, width] of a step with these rows in their places."""
        return embeddings.index_copy(0, self.at, self.rows.to(embeddings.dtype))
