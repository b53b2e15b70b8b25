"""Norm, rotation and KV write in PyTorch, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.kv_write.reference import kv_write
from kernels.rms_norm.reference import rms_norm
from kernels.rotary.reference import rotate

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.kv_write.cache import QuantizedCache
    from kernels.rope_kv_write.norms import HeadNorms


def rope_kv_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos_sin: Tensor,
    kv_cache: Tensor | QuantizedCache,
    layer: int,
    slot_mapping: Tensor,
    norms: HeadNorms | None,
) -> Tensor:
    """See `kernels.rope_kv_write.rope_kv_write`."""
    if norms is not None:
        q = rms_norm(q, norms.q_weight, eps=norms.eps)
        k = rms_norm(k, norms.k_weight, eps=norms.eps)
    kv_write((rotate(k, cos_sin), v), kv_cache, layer, slot_mapping)
    return rotate(q, cos_sin)
