"""Quantised decode attention as its definition: one sequence at a time, in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernels.quantize_rows.reference import dequantize_rows

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.kv_write_quantized.cache import QuantizedCache
    from kernels.paged_attention.batch import RaggedBatch


def paged_decode_quantized(
    q: Tensor,
    cache: QuantizedCache,
    layer: int,
    batch: RaggedBatch,
    scale: float,
    sliding_window: int | None,
) -> Tensor:
    """See `kernels.paged_attention_quantized.paged_decode_quantized`."""
    out = torch.empty_like(q)
    values = cache.values[:, layer].view(torch.uint8)  # float8 has no index
    group = q.shape[1] // values.shape[2]
    for row, (table, length) in enumerate(
        zip(batch.block_tables.long(), batch.seq_lens_list, strict=True)
    ):
        context = dequantize_rows(
            values[table].view(cache.values.dtype), cache.scales[table, layer]
        ).transpose(2, 3)  # [blocks, 2, block_size, num_kv_heads, head_dim]
        first = max(0, length - (sliding_window or length))
        keys, mixed = (
            context[:, kind].flatten(0, 1)[first:length].repeat_interleave(group, dim=1)
            for kind in (0, 1)
        )  # [visible, num_heads, head_dim]
        scores = torch.einsum("hd,khd->hk", q[row].float(), keys) * scale
        out[row] = torch.einsum("hk,khd->hd", scores.softmax(dim=-1), mixed).to(q.dtype)
    return out
