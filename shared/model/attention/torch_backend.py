"""Attention in plain PyTorch: the reference, and the path that needs no GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from torch import Tensor

    from shared.model.attention.base import AttentionMetadata


class TorchAttention:
    """Gathers each sequence's blocks and calls PyTorch's own attention."""

    name = "torch"

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        kv_cache: Tensor,
        layer: int,
        metadata: AttentionMetadata,
        *,
        scale: float,
        sliding_window: int | None,
    ) -> Tensor:
        """See `AttentionBackend.forward`."""
        cache = kv_cache[:, layer]  # [num_blocks, 2, num_kv_heads, block_size, head_dim]
        _write(k, v, cache, metadata.slot_mapping)
        if max(metadata.query_lens_list) == 1:
            return _decode(q, cache, metadata, scale, sliding_window)
        out = torch.empty_like(q)
        start = 0
        for i, (num_new, length) in enumerate(
            zip(metadata.query_lens_list, metadata.seq_lens_list, strict=True)
        ):
            end = start + num_new
            table = metadata.block_tables[i]
            out[start:end] = _prefill(q[start:end], cache, table, length, scale, sliding_window)
            start = end
        return out


def _write(k: Tensor, v: Tensor, cache: Tensor, slot_mapping: Tensor) -> None:
    block_size = cache.shape[3]
    blocks, offsets = slot_mapping // block_size, slot_mapping % block_size
    cache[blocks, 0, :, offsets] = k
    cache[blocks, 1, :, offsets] = v


def _gather(cache: Tensor, tables: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values [num_seqs, num_kv_heads, max_blocks * block_size, head_dim]."""
    num_seqs, num_blocks = tables.shape
    _, _, num_kv_heads, block_size, head_dim = cache.shape
    rows = cache[tables]  # [num_seqs, num_blocks, 2, num_kv_heads, block_size, head_dim]
    shape = (num_seqs, num_kv_heads, num_blocks * block_size, head_dim)
    keys, values = rows.permute(2, 0, 3, 1, 4, 5)
    return keys.reshape(shape), values.reshape(shape)


def _decode(
    q: Tensor, cache: Tensor, metadata: AttentionMetadata, scale: float, window: int | None
) -> Tensor:
    """All sequences in one call, padded to the longest."""
    block_size = cache.shape[3]
    num_blocks = -(-max(metadata.seq_lens_list) // block_size)
    keys, values = _gather(cache, metadata.block_tables[:, :num_blocks])
    positions = torch.arange(keys.shape[2])
    lengths = metadata.seq_lens[:, None]
    seen = positions < lengths  # [num_seqs, max_len]
    if window is not None:
        seen &= positions >= lengths - window
    # Zero weights do not undo NaN, so unseen values must not be NaN either.
    values.masked_fill_(~seen[:, None, :, None], 0)
    keys.masked_fill_(~seen[:, None, :, None], 0)
    out = scaled_dot_product_attention(
        q[:, :, None], keys, values, seen[:, None, None], scale=scale, enable_gqa=True
    )
    return out[:, :, 0]


def _prefill(
    q: Tensor, cache: Tensor, table: Tensor, length: int, scale: float, window: int | None
) -> Tensor:
    """One sequence: [num_new, num_heads, head_dim] against its first `length` positions."""
    block_size = cache.shape[3]
    num_blocks = -(-length // block_size)
    keys, values = _gather(cache, table[None, :num_blocks])
    keys, values = keys[:, :, :length], values[:, :, :length]
    num_new = q.shape[0]
    queries = q.transpose(0, 1)[None]
    if num_new == length and window is None:
        out = scaled_dot_product_attention(
            queries, keys, values, is_causal=True, scale=scale, enable_gqa=True
        )
    else:
        mask = _causal_mask(num_new, length, window)
        out = scaled_dot_product_attention(
            queries, keys, values, mask, scale=scale, enable_gqa=True
        )
    return out[0].transpose(0, 1)


def _causal_mask(num_new: int, length: int, window: int | None) -> Tensor:
    """bool [num_new, length]: what each new token sees."""
    positions = torch.arange(length)
    queries = torch.arange(length - num_new, length)[:, None]
    mask = positions <= queries
    if window is not None:
        mask &= positions > queries - window
    return mask
