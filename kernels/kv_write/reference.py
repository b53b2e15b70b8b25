"""KV write in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernels.kv_write.cache import QuantizedCache
from kernels.quantize_rows.reference import quantize_rows, quantize_rows_by

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def kv_write(
    kinds: Sequence[Tensor], kv_cache: Tensor | QuantizedCache, layer: int, slot_mapping: Tensor
) -> None:
    """See `kernels.kv_write.kv_write`; kinds: keys and values, or rows that are both."""
    block_size = kv_cache.shape[4]
    if not isinstance(kv_cache, QuantizedCache):
        blocks, offsets = slot_mapping // block_size, slot_mapping % block_size
        for kind, new in enumerate(kinds):
            kv_cache[blocks, layer, kind, :, offsets] = new
        return
    wanted = slot_mapping >= 0
    slots = slot_mapping[wanted]
    blocks, offsets = slots // block_size, slots % block_size
    # PyTorch does not assign float8 through an index; it does assign bytes.
    stored = kv_cache.values.view(torch.uint8)
    for kind, new in enumerate(kinds):
        rows, dtype = new[wanted], kv_cache.values.dtype
        if kv_cache.is_static:
            values = quantize_rows_by(rows, kv_cache.scales[0, layer, kind, :, 0], dtype)
        else:
            values, scales = quantize_rows(rows, dtype)
            kv_cache.scales[blocks, layer, kind, :, offsets] = scales
        stored[blocks, layer, kind, :, offsets] = values.view(torch.uint8)
