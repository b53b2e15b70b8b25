"""What attention over latent rows takes besides the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class LatentQueries(NamedTuple):
    """The queries of packed tokens."""

    #: [num_tokens, num_heads, plain_dim]: what meets up_keys @ c.
    plain: Tensor
    #: [num_tokens, num_heads, rope_dim]: what meets p.
    rotated: Tensor


class LatentWeights(NamedTuple):
    """What makes keys and values of rows, by head."""

    #: [num_heads, plain_dim, latent_dim]
    up_keys: Tensor
    #: [num_heads, value_dim, latent_dim]
    up_values: Tensor

    @property
    def latent_dim(self) -> int:
        """Numbers of a row that keys and values are made of."""
        return self.up_keys.shape[2]
