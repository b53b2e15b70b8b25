"""Sizes, tiles and strides, as the launchers of both kernels use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.paged_attention.scores import Scores

    #: One layer's values [num_blocks, 2, num_kv_heads, block_size, head_dim], and their scales
    #: [num_blocks, 2, num_kv_heads, block_size] if they are quantised.
    LayerCache = tuple[Tensor, Tensor | None]


class AttentionShape(NamedTuple):
    """The sizes and kinds on which a kernel's constants and tiles depend."""

    #: Query heads per key/value head.
    group: int
    head_dim: int
    #: Tokens per block of the cache.
    block_size: int
    #: Bytes per number of the queries.
    element_bytes: int
    quantized: bool
    has_softcap: bool = False
    has_sinks: bool = False

    @classmethod
    def of(cls, q: Tensor, cache: LayerCache, scores: Scores) -> AttentionShape:
        """Return those of queries [num_tokens, num_heads, head_dim], a layer's cache and scores."""
        values, scales = cache
        num_kv_heads, block_size, head_dim = values.shape[2:]
        group = q.shape[1] // num_kv_heads
        return cls(
            group,
            head_dim,
            block_size,
            q.element_size(),
            quantized=scales is not None,
            has_softcap=scores.softcap is not None,
            has_sinks=scores.sinks is not None,
        )


class Tiles(NamedTuple):
    """How much one program computes at a time."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


def cache_strides(cache: LayerCache) -> tuple[int | None, ...]:
    """Return the strides of values and scales that the kernels take; None without scales."""
    values, scales = cache
    return *values.stride()[:4], *((None,) * 3 if scales is None else scales.stride()[:3])
