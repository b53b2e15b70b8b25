"""Stores new keys and values in their slots of the paged cache; `rope_kv_write` also rotates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.kv_write import reference
from kernels.kv_write.cache import QuantizedCache

if TYPE_CHECKING:
    from torch import Tensor


def kv_write(
    k: Tensor,
    v: Tensor | None,
    kv_cache: Tensor | QuantizedCache,
    layer: int,
    slot_mapping: Tensor,
    *,
    implementation: str = "torch",
) -> None:
    """Write k and v of each token into its slot; slots must not repeat.

    k, v: [num_tokens, num_kv_heads, head_dim]; slot_mapping: int64 [num_tokens], block * block_size
    + offset; kv_cache: [num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim]. For a
    quantised cache, k and v are quantised per token and head, or with its static scales; a negative
    slot stores nothing, and both implementations write the same bits. For a plain cache there is
    only `torch`. v is None for a cache with one row per token,
    [num_blocks, num_layers, 1, 1, block_size, size], which only `torch` writes.

    Raises:
        ValueError: shapes that do not fit together, or an implementation unknown for this cache.
    """
    num_kv_heads, _, head_dim = kv_cache.shape[3:]
    expected = (len(slot_mapping), num_kv_heads, head_dim)
    kinds = (k,) if v is None else (k, v)
    if any(new.shape != expected for new in kinds) or len(kinds) != kv_cache.shape[2]:
        shapes = ", ".join(str(tuple(new.shape)) for new in kinds)
        raise ValueError(
            f"k and v of {shapes} must be {expected} for this cache of {kv_cache.shape[2]} kinds"
        )
    if implementation == "torch":
        reference.kv_write(kinds, kv_cache, layer, slot_mapping)
    elif implementation == "triton" and v is not None and isinstance(kv_cache, QuantizedCache):
        from kernels.kv_write.kernel import launch  # noqa: PLC0415 Triton is optional

        launch(k, v, kv_cache, layer, slot_mapping)
    else:
        raise ValueError(f"kv_write has no implementation {implementation!r} for this cache")
