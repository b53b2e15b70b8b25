"""Quantised KV write in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernels.quantize_rows.reference import quantize_rows

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.kv_write_quantized.cache import QuantizedCache


def kv_write_quantized(
    k: Tensor, v: Tensor, cache: QuantizedCache, layer: int, slot_mapping: Tensor
) -> None:
    """See `kernels.kv_write_quantized.kv_write_quantized`."""
    block_size = cache.values.shape[4]
    wanted = slot_mapping >= 0
    slots = slot_mapping[wanted]
    blocks, offsets = slots // block_size, slots % block_size
    # PyTorch does not assign through an index in float8; the bytes it does.
    stored = cache.values.view(torch.uint8)
    for kind, new in enumerate((k, v)):
        values, scales = quantize_rows(new[wanted], cache.values.dtype)
        stored[blocks, layer, kind, :, offsets] = values.view(torch.uint8)
        cache.scales[blocks, layer, kind, :, offsets] = scales
