"""The parameters of the norms of queries and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class HeadNorms(NamedTuple):
    """Root-mean-square norms over each head."""

    #: [head_dim]
    q_weight: Tensor
    #: [head_dim]
    k_weight: Tensor
    eps: float
