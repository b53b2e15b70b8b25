"""Paged attention written as its definition: one sequence at a time, float32, no tricks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.paged_attention.batch import RaggedBatch


def paged_attention(
    q: Tensor,
    kv_cache: Tensor,
    layer: int,
    batch: RaggedBatch,
    scale: float,
    sliding_window: int | None,
) -> Tensor:
    """See `kernels.paged_attention.paged_attention`."""
    cache = kv_cache[:, layer]  # [num_blocks, 2, num_kv_heads, block_size, head_dim]
    out = torch.empty_like(q)
    group = q.shape[1] // cache.shape[2]
    start = 0
    for table, num_new, length in zip(
        batch.block_tables, batch.query_lens_list, batch.seq_lens_list, strict=True
    ):
        tokens = slice(start, start + num_new)
        context = cache[table.long()].transpose(2, 3)
        keys, values = (
            context[:, kind].flatten(0, 1)[:length].float().repeat_interleave(group, dim=1)
            for kind in (0, 1)
        )  # [length, num_heads, head_dim]
        scores = torch.einsum("qhd,khd->hqk", q[tokens].float(), keys) * scale
        position = torch.arange(length - num_new, length, device=q.device)[:, None]
        key_position = torch.arange(length, device=q.device)
        hidden = key_position > position
        if sliding_window is not None:
            hidden |= key_position <= position - sliding_window
        weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
        out[tokens] = torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
        start += num_new
    return out
