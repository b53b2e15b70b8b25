"""Attention over a quantised cache as its definition: one sequence at a time, in float32."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import torch

from kernels.quantize_rows.reference import dequantize_rows

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.kv_write_quantized.cache import QuantizedCache
    from kernels.paged_attention.batch import RaggedBatch


def paged_attention_quantized(
    q: Tensor,
    cache: QuantizedCache,
    layer: int,
    batch: RaggedBatch,
    scale: float,
    sliding_window: int | None,
) -> Tensor:
    """See `kernels.paged_attention_quantized.paged_attention_quantized`."""
    out = torch.empty_like(q)
    group = q.shape[1] // cache.values.shape[3]
    starts = pairwise([0, *accumulate(batch.query_lens_list)])
    for (first, end), table, length in zip(
        starts, batch.block_tables, batch.seq_lens_list, strict=True
    ):
        if length == 0:  # pads a batch
            out[first:end] = 0
            continue
        keys, values = _context(cache, layer, table, length, group)
        queries = torch.arange(length - (end - first), length, device=q.device)[:, None]
        positions = torch.arange(length, device=q.device)
        hidden = positions > queries
        if sliding_window is not None:
            hidden |= positions <= queries - sliding_window
        scores = torch.einsum("qhd,khd->hqk", q[first:end].float(), keys) * scale
        weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
        out[first:end] = torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
    return out


def _context(
    cache: QuantizedCache, layer: int, table: Tensor, length: int, group: int
) -> tuple[Tensor, Tensor]:
    """Keys and values float32 [length, num_heads, head_dim] of one sequence."""
    block_size = cache.values.shape[4]
    blocks = table[: -(-length // block_size)].long()
    stored, scales = cache.layer(layer)
    values = stored.view(torch.uint8)[blocks].view(stored.dtype)  # float8 has no index
    context = dequantize_rows(values, scales[blocks]).transpose(2, 3)
    keys, values = (
        context[:, kind].flatten(0, 1)[:length].repeat_interleave(group, dim=1) for kind in (0, 1)
    )
    return keys, values
