"""Paged attention as its definition: one sequence at a time, in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernels.kv_write.cache import QuantizedCache
from kernels.quantize_rows.reference import dequantize_rows

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.paged_attention.batch import RaggedBatch
    from kernels.paged_attention.scores import Scores


def paged_attention(
    q: Tensor,
    kv_cache: Tensor | QuantizedCache,
    layer: int,
    batch: RaggedBatch,
    scores: Scores,
) -> Tensor:
    """See `kernels.paged_attention.paged_attention`."""
    out = torch.empty_like(q)
    num_kv_heads, block_size = kv_cache.shape[3:5]
    group = q.shape[1] // num_kv_heads
    start = 0
    for table, num_new, length in zip(
        batch.block_tables, batch.query_lens_list, batch.seq_lens_list, strict=True
    ):
        tokens = slice(start, start + num_new)
        # The first key that any query sees: what lies in front of it is no key of the sequence.
        first = max(0, scores.first_seen(length - num_new))
        blocks = table[: -(-length // block_size)].long()
        context = _read(kv_cache, layer, blocks).transpose(2, 3)
        keys, values = (
            context[:, kind].flatten(0, 1)[first:length].repeat_interleave(group, dim=1)
            for kind in (0, -1)
        )  # [length - first, num_heads, head_dim]
        products = torch.einsum("qhd,khd->hqk", q[tokens].float(), keys)
        position = torch.arange(length - num_new, length, device=q.device)[:, None]
        key_position = torch.arange(first, length, device=q.device)
        visible = key_position <= position
        visible &= key_position >= scores.first_seen(position)
        weights = scores.weights(products, visible)
        out[tokens] = torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
        start += num_new
    return out


def _read(kv_cache: Tensor | QuantizedCache, layer: int, blocks: Tensor) -> Tensor:
    """Return one layer of the blocks in float32 [n, kinds, num_kv_heads, block_size, head_dim]."""
    if isinstance(kv_cache, QuantizedCache):
        stored, scales = kv_cache.layer(layer)
        values = stored.view(torch.uint8)[blocks].view(stored.dtype)  # float8 has no index
        return dequantize_rows(values, scales[blocks])
    return kv_cache[blocks, layer].float()
