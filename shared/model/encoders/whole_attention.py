"""Attention of each token to those around it, in packed texts."""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

#: Queries that share the keys of one window at a time, and no fewer than these.
_FEWEST_QUERIES = 64


class Attend(Protocol):
    """See `whole_attention`."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        lengths: Sequence[int],
        *,
        scale: float,
        window: int | None = None,
    ) -> Tensor:
        """Attend from each token to all tokens of its text that are closer than `window`."""
        ...


def whole_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Sequence[int],
    *,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """Attend from each token to all tokens of its text that are closer than `window`.

    q: [num_tokens, num_heads, head_dim]; k, v: [num_tokens, num_kv_heads, head_dim]; of texts of
    these `lengths`, one behind the other. Returns the shape of q.
    """
    parts, begin = [], 0
    for length, same in groupby(lengths):
        num = len(list(same))
        end = begin + num * length
        texts = [part[begin:end].unflatten(0, (num, length)).transpose(1, 2) for part in (q, k, v)]
        mixed = _equal(texts[0], texts[1], texts[2], scale, window).transpose(1, 2)
        parts.append(mixed.reshape(end - begin, *q.shape[1:]))
        begin = end
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _equal(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
    """As `whole_attention`, of texts of equal length: [num_texts, num_heads, length, head_dim]."""
    length, is_grouped = q.shape[2], q.shape[1] != k.shape[1]
    if window is None or window >= length:
        return scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=is_grouped)
    parts, step = [], max(_FEWEST_QUERIES, window)
    for first in range(0, length, step):
        end = min(first + step, length)
        low, high = max(0, first - window + 1), min(length, end + window - 1)
        band = _band(first - low, end - first, high - low, window, q.dtype)
        keys = slice(low, high)
        parts.append(
            scaled_dot_product_attention(
                q[:, :, first:end],
                k[:, :, keys],
                v[:, :, keys],
                attn_mask=band.to(q.device),
                scale=scale,
                enable_gqa=is_grouped,
            )
        )
    return torch.cat(parts, dim=2)


@lru_cache(maxsize=16)
def _band(first: int, num_queries: int, num_keys: int, window: int, dtype: torch.dtype) -> Tensor:
    """Return [num_queries, num_keys]: 0 where a query sees a key, else minus infinity.

    first: the key at the place of the first query.
    """
    distance = (torch.arange(num_queries)[:, None] + first - torch.arange(num_keys)).abs()
    return torch.zeros(num_queries, num_keys, dtype=dtype).masked_fill_(
        distance >= window, float("-inf")
    )
