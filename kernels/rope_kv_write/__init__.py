"""The steps between projections and attention: norm, rotation and KV write."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernels.kv_write import kv_write
from kernels.kv_write.cache import QuantizedCache
from kernels.rope_kv_write import reference

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.rope_kv_write.norms import HeadNorms


def rope_kv_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos_sin: Tensor,
    kv_cache: Tensor | QuantizedCache,
    layer: int,
    slot_mapping: Tensor,
    *,
    norms: HeadNorms | None = None,
    implementation: str = "torch",
) -> Tensor:
    """Write each token's rotated k, and its v, into its slot; return the rotated q.

    q: [num_tokens, num_heads, head_dim]; k, v: [num_tokens, num_kv_heads, head_dim]; cos_sin:
    [num_tokens, head_dim], cosines before sines, of each token's position; slot_mapping: int64
    [num_tokens], block * block_size + offset, none twice; kv_cache:
    [num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim]. With `norms`, q and k are
    normalised per head first, as Qwen3 does. Triton rounds once, at the end, and once more for a
    quantised cache.

    Raises:
        ValueError: shapes that do not fit together, or an unknown implementation.
    """
    num_kv_heads, head_dim = kv_cache.shape[3], kv_cache.shape[5]
    expected = (len(slot_mapping), num_kv_heads, head_dim)
    if k.shape != expected or v.shape != expected:
        raise ValueError(
            f"k {tuple(k.shape)} and v {tuple(v.shape)} must be {expected} for this cache"
        )
    if (
        q.shape[::2] != (len(q), head_dim)
        or cos_sin.shape != (len(q), head_dim)
        or len(q) != len(k)
    ):
        raise ValueError(
            f"q {tuple(q.shape)} and cos_sin {tuple(cos_sin.shape)} do not fit k {expected}"
        )
    if implementation == "torch":
        return reference.rope_kv_write(q, k, v, cos_sin, kv_cache, layer, slot_mapping, norms)
    if implementation == "triton":
        return _launch(q, k, v, cos_sin, kv_cache, layer, slot_mapping, norms)
    raise ValueError(f"rope_kv_write has no implementation {implementation!r}")


def _launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos_sin: Tensor,
    kv_cache: Tensor | QuantizedCache,
    layer: int,
    slot_mapping: Tensor,
    norms: HeadNorms | None,
) -> Tensor:
    from kernels.rope_kv_write.kernel import launch  # noqa: PLC0415 Triton is optional

    if not isinstance(kv_cache, QuantizedCache):
        return launch(q, k, v, cos_sin, kv_cache[:, layer], slot_mapping, norms)
    # Into a plain cache of one block first: rotated keys pass through memory once more than above.
    num_tokens, num_kv_heads, head_dim = k.shape
    block = k.new_empty((1, 2, num_kv_heads, num_tokens, head_dim))
    slots = torch.arange(num_tokens, device=k.device)
    rotated = launch(q, k, v, cos_sin, block, slots, norms)
    new_k, new_v = block[0].transpose(1, 2)
    kv_write(new_k, new_v, kv_cache, layer, slot_mapping, implementation="triton")
    return rotated
