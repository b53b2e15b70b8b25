"""Stores new keys and values in their slots of the paged cache; `rope_kv_write` also rotates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.kv_write import reference

if TYPE_CHECKING:
    from torch import Tensor


def kv_write(k: Tensor, v: Tensor, kv_cache: Tensor, layer: int, slot_mapping: Tensor) -> None:
    """Write k and v of each token into its slot; slots must not repeat.

    k, v: [num_tokens, num_kv_heads, head_dim]; slot_mapping: int64 [num_tokens], block * block_size
    + offset; kv_cache: [num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim].

    Raises:
        ValueError: shapes that do not fit together.
    """
    num_kv_heads, head_dim = kv_cache.shape[3], kv_cache.shape[5]
    expected = (len(slot_mapping), num_kv_heads, head_dim)
    if k.shape != expected or v.shape != expected:
        raise ValueError(
            f"k {tuple(k.shape)} and v {tuple(v.shape)} must be {expected} for this cache"
        )
    reference.kv_write(k, v, kv_cache, layer, slot_mapping)
