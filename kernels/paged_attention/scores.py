"""How scores are made of queries and keys, and which keys a query sees."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

#: Of one query, or of several.
_Position = TypeVar("_Position", int, Tensor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """One layer's rule. Every query sees the keys up to its own position."""

    #: Factor of the product of a query and a key.
    scale: float
    #: A window W shows a query its own position and the W - 1 before it; None: all.
    window: int | None = None
    #: A query sees the keys from the last multiple of `window` on instead: its chunk (Llama 4).
    is_chunked: bool = False
    #: A cap c makes c * tanh(score / c) of every scaled score (Gemma 2); None: none.
    softcap: float | None = None
    #: float32 [num_heads]: a score of each head that takes part in the softmax and has no value
    #: (gpt-oss); None: none.
    sinks: Tensor | None = None

    def first_seen(self, position: _Position) -> _Position:
        """Return the first key that a query at a position sees; below 0 stands for 0.

        It never falls from one position to the next.
        """
        if self.window is None:
            return position * 0
        if self.is_chunked:
            return position - position % self.window
        return position - self.window + 1

    @property
    def is_plain(self) -> bool:
        """Whether scores are products with a factor, as PyTorch's own attention computes them."""
        return self.softcap is None and self.sinks is None

    @property
    def log2_scale(self) -> float:
        """The factor that makes powers of two: exp2 of the result is e to the scaled score."""
        return self.scale * math.log2(math.e)

    def weights(self, products: Tensor, visible: Tensor | None) -> Tensor:
        """Return the weights of values, in the products' type; the softmax is in float32.

        products: [..., num_heads, num_queries, num_keys] of queries and keys; visible: bool, of a
        shape that expands to theirs; None: all.
        """
        scores = products.float() * self.scale
        if self.softcap is not None:
            scores = (scores / self.softcap).tanh() * self.softcap
        if visible is not None:
            scores = scores.masked_fill(~visible, float("-inf"))
        if self.sinks is None:
            return scores.softmax(dim=-1).to(products.dtype)
        sinks = self.sinks[:, None, None].expand(*scores.shape[:-1], 1)
        weights = torch.cat((scores, sinks), dim=-1).softmax(dim=-1)
        return weights[..., :-1].to(products.dtype)
