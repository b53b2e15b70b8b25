"""Stores new keys and values in 8 bits in their slots of the paged cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.kv_write_quantized import reference

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.kv_write_quantized.cache import QuantizedCache


def kv_write_quantized(
    k: Tensor,
    v: Tensor,
    cache: QuantizedCache,
    layer: int,
    slot_mapping: Tensor,
    *,
    implementation: str = "torch",
) -> None:
    """Quantise k and v of each token and head, and write them into its slot; none may repeat.

    k, v: [num_tokens, num_kv_heads, head_dim]; slot_mapping: int64 [num_tokens], block * block_size
    + offset. A negative slot stores nothing. Both implementations write the same bits.

    Raises:
        ValueError: shapes that do not fit together, or an unknown implementation.
    """
    num_kv_heads, _, head_dim = cache.values.shape[3:]
    expected = (len(slot_mapping), num_kv_heads, head_dim)
    if k.shape != expected or v.shape != expected:
        raise ValueError(
            f"k {tuple(k.shape)} and v {tuple(v.shape)} must be {expected} for this cache"
        )
    if implementation == "torch":
        reference.kv_write_quantized(k, v, cache, layer, slot_mapping)
    elif implementation == "triton":
        from kernels.kv_write_quantized.kernel import launch  # noqa: PLC0415 Triton is optional

        launch(k, v, cache, layer, slot_mapping)
    else:
        raise ValueError(f"kv_write_quantized has no implementation {implementation!r}")
