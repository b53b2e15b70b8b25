"""KV write in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def kv_write(k: Tensor, v: Tensor, kv_cache: Tensor, layer: int, slot_mapping: Tensor) -> None:
    """See `kernels.kv_write.kv_write`."""
    block_size = kv_cache.shape[4]
    blocks, offsets = slot_mapping // block_size, slot_mapping % block_size
    kv_cache[blocks, layer, 0, :, offsets] = k
    kv_cache[blocks, layer, 1, :, offsets] = v
