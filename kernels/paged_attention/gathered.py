"""Paged attention with PyTorch's own attention over gathered blocks: the path without a GPU.

Sequences with one new token are computed together, the others one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def paged_attention(
    q: Tensor,
    cache: Tensor,
    *,
    block_tables: Tensor,
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    scale: float,
    sliding_window: int | None,
) -> Tensor:
    """See `kernels.paged_attention.paged_attention`.

    cache: one layer's [num_blocks, 2, num_kv_heads, block_size, head_dim].
    """
    if max(query_lens) == 1:
        return _decode(q, cache, block_tables, seq_lens, scale, sliding_window)
    out = torch.empty_like(q)
    single_rows: list[int] = []
    single_tokens: list[int] = []
    start = 0
    for row, (num_new, length) in enumerate(zip(query_lens, seq_lens, strict=True)):
        if num_new == 1:
            single_rows.append(row)
            single_tokens.append(start)
        elif num_new:
            tokens = slice(start, start + num_new)
            out[tokens] = _extend(
                q[tokens], cache, block_tables[row], length, scale, sliding_window
            )
        start += num_new
    if single_rows:
        lengths = [seq_lens[row] for row in single_rows]
        tables = block_tables[single_rows]
        out[single_tokens] = _decode(
            q[single_tokens], cache, tables, lengths, scale, sliding_window
        )
    return out


def _decode(
    q: Tensor,
    cache: Tensor,
    tables: Tensor,
    seq_lens: Sequence[int],
    scale: float,
    window: int | None,
) -> Tensor:
    """One query per sequence, all in one call, padded to the longest."""
    num_kv_heads, block_size = cache.shape[2:4]
    shortest, longest = min(seq_lens), max(seq_lens)
    first_block = 0 if window is None else max(0, shortest - window) // block_size
    start, end = first_block * block_size, longest
    keys, values = _gather(cache, tables[:, first_block : -(-end // block_size)])
    keys, values = keys[:, :, : end - start], values[:, :, : end - start]
    mask = None
    if shortest < longest or window is not None:
        lengths = torch.tensor(seq_lens, device=q.device)[:, None]
        positions = torch.arange(start, end, device=q.device)
        mask = positions < lengths  # [num_seqs, end - start]
        # A weight of zero does not undo NaN, so nothing unwritten may take part in a product.
        unwritten = ~mask[:, None, shortest - start :, None]
        keys[:, :, shortest - start :].masked_fill_(unwritten, 0)
        values[:, :, shortest - start :].masked_fill_(unwritten, 0)
        if window is not None:
            mask &= positions >= lengths - window
        mask = mask[:, None, None]
    # The query heads of a group become rows of one head: nothing is repeated for the group.
    grouped = q.reshape(len(q), num_kv_heads, -1, q.shape[2])
    return scaled_dot_product_attention(grouped, keys, values, mask, scale=scale).flatten(1, 2)


def _extend(
    q: Tensor, cache: Tensor, table: Tensor, length: int, scale: float, window: int | None
) -> Tensor:
    """Several queries of one sequence: [num_new, num_heads, head_dim] at the end of `length`."""
    block_size = cache.shape[3]
    num_new = q.shape[0]
    first_block = 0
    if window is not None:
        first_block = max(0, length - num_new - window + 1) // block_size
    start = first_block * block_size
    keys, values = _gather(cache, table[None, first_block : -(-length // block_size)])
    keys, values = keys[:, :, : length - start], values[:, :, : length - start]
    whole = num_new == length and (window is None or window >= length)
    out = scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        keys,
        values,
        None if whole else _causal_mask(start, num_new, length, window, q.device),
        is_causal=whole,
        scale=scale,
        enable_gqa=True,
    )
    return out[0].transpose(0, 1)


def _gather(cache: Tensor, tables: Tensor) -> tuple[Tensor, Tensor]:
    """Fresh copies [num_seqs, num_kv_heads, num_blocks * block_size, head_dim], one pass each."""
    heads = torch.arange(cache.shape[2], device=cache.device)[:, None]
    blocks = tables[:, None]  # [num_seqs, 1, num_blocks]
    return cache[blocks, 0, heads].flatten(2, 3), cache[blocks, 1, heads].flatten(2, 3)


def _causal_mask(
    start: int, num_new: int, length: int, window: int | None, device: torch.device
) -> Tensor:
    """bool [num_new, length - start]: what each new token sees of the keys from `start` on."""
    positions = torch.arange(start, length, device=device)
    queries = torch.arange(length - num_new, length, device=device)[:, None]
    mask = positions <= queries
    if window is not None:
        mask &= positions > queries - window
    return mask
