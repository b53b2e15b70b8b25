"""Paged attention without a GPU: PyTorch's own attention over gathered blocks.

Sequences with one new token are computed several at a time, the others one by one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from kernels.paged_attention.batch import RaggedBatch
    from kernels.paged_attention.scores import Scores
    from kernels.paged_attention.workspace import Workspace

#: Bytes of keys and values that are gathered for one call to PyTorch. More would leave the
#: processor's cache before they are used, and would pad more sequences to the longest one.
_GATHERED_BYTES = 2 << 20


def paged_attention(
    q: Tensor,
    kv_cache: Tensor,
    layer: int,
    batch: RaggedBatch,
    scores: Scores,
    workspace: Workspace,
) -> Tensor:
    """See `kernels.paged_attention.paged_attention`.

    Raises:
        ValueError: a block is not contiguous.
    """
    if not kv_cache[0].is_contiguous():
        raise ValueError("attention with PyTorch needs contiguous blocks")
    query_lens, seq_lens = batch.query_lens_list, batch.seq_lens_list
    starts = [0, *accumulate(query_lens)]
    single = [row for row, num_new in enumerate(query_lens) if num_new == 1]
    lengths = [seq_lens[row] for row in single]
    if len(single) == len(query_lens):
        context = _Context(kv_cache, layer, batch.block_tables, workspace)
        return _decode_all(q, context, lengths, scores)
    out = torch.empty_like(q)
    for row, num_new in enumerate(query_lens):
        if num_new > 1:
            tokens = slice(starts[row], starts[row + 1])
            context = _Context(kv_cache, layer, batch.block_tables[row : row + 1], workspace)
            out[tokens] = _extend(q[tokens], context, seq_lens[row], scores)
    if single:
        places = [starts[row] for row in single]
        context = _Context(kv_cache, layer, batch.block_tables[single], workspace)
        out[places] = _decode_all(q[places], context, lengths, scores)
    return out


def _decode_all(q: Tensor, context: _Context, seq_lens: Sequence[int], scores: Scores) -> Tensor:
    """Attend with one query per sequence, as many sequences at a time as the limit allows."""
    out = torch.empty_like(q)
    for part in _decode_batches(context.kv_cache, seq_lens):
        own = replace(context, tables=context.tables[part])
        out[part] = _decode(q[part], own, seq_lens[part], scores)
    return out


def _decode_batches(kv_cache: Tensor, seq_lens: Sequence[int]) -> Iterator[slice]:
    """Yield neighbours whose keys and values, padded to the longest, stay within the limit."""
    num_kinds, num_kv_heads, _, head_dim = kv_cache.shape[2:]
    limit = _GATHERED_BYTES // (num_kinds * num_kv_heads * head_dim * kv_cache.element_size())
    first, longest = 0, 0
    for row, length in enumerate(seq_lens):
        longest = max(longest, length)
        if row > first and longest * (row + 1 - first) > limit:
            yield slice(first, row)
            first, longest = row, length
    yield slice(first, len(seq_lens))


@dataclass(frozen=True, slots=True)
class _Context:
    """The cached keys and values of some sequences in one layer."""

    kv_cache: Tensor
    layer: int
    tables: Tensor  # [num_seqs, max_blocks]
    workspace: Workspace

    def gather(self, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Return copies of keys and values [num_seqs, num_kv_heads, end - start, head_dim].

        The copies are valid until the next call with this workspace. Of a cache with one kind they
        are the same memory.
        """
        num_blocks, num_layers, kinds, num_kv_heads, block_size, head_dim = self.kv_cache.shape
        tables = self.tables[:, start // block_size : -(-end // block_size), None].mT
        # Of [block_size, head_dim] there is one per block, layer, kind and head. Blocks may be
        # longer than their layers together, and no whole number of those apart: it is one piece or
        # several.
        size, stride = block_size * head_dim, self.kv_cache.stride(0)
        piece = math.gcd(size, stride)
        per_head, per_block = size // piece, stride // piece
        num_pieces = (num_blocks - 1) * per_block + num_layers * kinds * num_kv_heads * per_head
        pieces = self.kv_cache.as_strided((num_pieces, piece), (piece, 1))
        heads = torch.arange(num_kv_heads, device=tables.device)[:, None]
        first = tables.long() * per_block
        keys_at = first + (self.layer * kinds * num_kv_heads + heads) * per_head
        kinds_at = [keys_at + kind * num_kv_heads * per_head for kind in range(kinds)]
        own = torch.arange(per_head, device=tables.device)
        at = (torch.stack(kinds_at).unsqueeze(-1) + own).flatten()
        out = self.workspace.take((len(at), piece), pieces.dtype, pieces.device)
        torch.index_select(pieces, 0, at, out=out)
        shape = (kinds, len(tables), num_kv_heads, -1, head_dim)
        skipped = start % block_size
        found = out.view(shape)[..., skipped : skipped + end - start, :]
        return found[0], found[-1]


def _decode(q: Tensor, context: _Context, seq_lens: Sequence[int], scores: Scores) -> Tensor:
    """Attend with one query per sequence in one call, padded to the longest."""
    num_kv_heads, _, head_dim = context.kv_cache.shape[3:]
    shortest, longest = min(seq_lens), max(seq_lens)
    start = max(0, scores.first_seen(shortest - 1))
    keys, values = context.gather(start, longest)
    mask = None
    if shortest < longest:
        lengths = torch.tensor(seq_lens, device=q.device)[:, None]
        positions = torch.arange(start, longest, device=q.device)
        mask = positions < lengths  # [num_seqs, longest - start]
        parts = [slice(shortest - start, None)]
        if scores.window is not None:
            mask &= positions >= scores.first_seen(lengths - 1)
            parts.append(slice(0, max(0, scores.first_seen(longest - 1) - start)))
        mask = mask[:, None, None]
        # Zero times NaN is NaN, so keys and values that are not the sequence's enter no product.
        for part in parts:
            hidden = ~mask[:, 0, :, part, None]
            keys[:, :, part].masked_fill_(hidden, 0)
            values[:, :, part].masked_fill_(hidden, 0)
    # The query heads of a group become rows of one head, so keys and values are not repeated.
    grouped = q.reshape(len(q), num_kv_heads, -1, head_dim)
    if scores.is_plain:
        out = scaled_dot_product_attention(grouped, keys, values, mask, scale=scores.scale)
        return out.flatten(1, 2)
    return _attend(grouped.flatten(1, 2)[:, :, None], keys, values, mask, scores)[:, :, 0]


def _extend(q: Tensor, context: _Context, length: int, scores: Scores) -> Tensor:
    """Several queries of one sequence: [num_new, num_heads, head_dim] at the end of `length`."""
    num_new = q.shape[0]
    start = max(0, scores.first_seen(length - num_new))
    keys, values = context.gather(start, length)
    whole = num_new == length and scores.first_seen(length - 1) <= 0
    visible = None if whole else _causal_mask(start, num_new, length, scores, q.device)
    queries = q.transpose(0, 1)[None]
    if scores.is_plain:
        out = scaled_dot_product_attention(
            queries,
            keys,
            values,
            visible,
            is_causal=whole,
            scale=scores.scale,
            enable_gqa=True,
        )
        return out[0].transpose(0, 1)
    if visible is None:
        visible = _causal_mask(start, num_new, length, scores, q.device)
    return _attend(queries, keys, values, visible, scores)[0].transpose(0, 1)


def _attend(
    q: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None, scores: Scores
) -> Tensor:
    """Attention whose scores PyTorch's own does not compute.

    q: [num_seqs, num_heads, num_queries, head_dim]; returns its shape.
    """
    group = q.shape[1] // keys.shape[1]
    rows = q.unflatten(1, (-1, group)).flatten(2, 3)
    products = (rows @ keys.mT).view(*q.shape[:3], -1)
    weights = scores.weights(products, visible)
    return (weights.view(*rows.shape[:3], -1) @ values).view(q.shape)


def _causal_mask(
    start: int, num_new: int, length: int, scores: Scores, device: torch.device
) -> Tensor:
    """Return bool [num_new, length - start]: the keys from `start` on that each token sees."""
    positions = torch.arange(start, length, device=device)
    queries = torch.arange(length - num_new, length, device=device)[:, None]
    mask = positions <= queries
    if scores.window is not None:
        mask &= positions >= scores.first_seen(queries)
    return mask
