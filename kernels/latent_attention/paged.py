"""Attention over latent rows in PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import linear, pad, scaled_dot_product_attention

from kernels.latent_attention.queries import LatentQueries
from kernels.latent_attention.reference import read_rows
from kernels.paged_attention import paged_attention
from kernels.paged_attention.scores import Scores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from kernels.kv_write.cache import QuantizedCache
    from kernels.latent_attention.queries import LatentWeights
    from kernels.paged_attention.batch import RaggedBatch
    from kernels.paged_attention.workspace import Workspace

#: Bytes of queries, keys and values that are made for one call to PyTorch, unless one head has
#: more. Memory is so bounded, and they stay in the processor's cache.
_EXPANDED_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class _Part:
    """Some sequences of a batch."""

    query_start_loc: Tensor
    seq_lens: Tensor
    block_tables: Tensor
    query_lens_list: Sequence[int]
    seq_lens_list: Sequence[int]


def latent_attention(
    queries: LatentQueries,
    weights: LatentWeights,
    kv_cache: Tensor | QuantizedCache,
    layer: int,
    batch: RaggedBatch,
    scale: float,
    workspace: Workspace,
) -> Tensor:
    """See `kernels.latent_attention.latent_attention`."""
    lens = list(zip(batch.query_lens_list, batch.seq_lens_list, strict=True))
    few = [
        row for row, (num_new, length) in enumerate(lens) if is_absorbed(weights, num_new, length)
    ]
    if len(few) == len(lens):
        return _absorbed(queries, weights, kv_cache, layer, batch, scale, workspace)
    num_heads, value_dim = weights.up_values.shape[:2]
    out = queries.plain.new_empty((len(queries.plain), num_heads, value_dim))
    starts = [0, *accumulate(batch.query_lens_list)]
    for row in set(range(len(lens))).difference(few):
        tokens = slice(starts[row], starts[row + 1])
        rows = read_rows(kv_cache, layer, batch.block_tables[row], lens[row][1])
        own = LatentQueries(queries.plain[tokens], queries.rotated[tokens])
        _expand(own, weights, rows.to(out.dtype), scale, out[tokens])
    if few:
        places, own, part = take_part(queries, batch, few)
        out[places] = _absorbed(own, weights, kv_cache, layer, part, scale, workspace)
    return out


def is_absorbed(weights: LatentWeights, num_new: int, length: int) -> bool:
    """Return whether products of rows alone are the fewer for `num_new` tokens after a context.

    By head: keys and values of all rows are a product of each row with `up_keys` and `up_values`;
    without them, each query and each result is one, and a product of a query and a row is longer.
    """
    latent_dim, plain_dim = weights.latent_dim, weights.up_keys.shape[1]
    made = plain_dim + weights.up_values.shape[1]
    longer = max(0, 2 * latent_dim - made)
    return num_new * (longer * length + made * latent_dim) <= length * made * latent_dim


def take_part(
    queries: LatentQueries, batch: RaggedBatch, rows: Sequence[int]
) -> tuple[Tensor, LatentQueries, RaggedBatch]:
    """Return some sequences of a batch: the indexes of their tokens, their queries, themselves."""
    ends = list(accumulate(batch.query_lens_list))
    lens = [batch.query_lens_list[row] for row in rows]
    places = torch.cat(
        [torch.arange(ends[row] - num, ends[row]) for row, num in zip(rows, lens, strict=True)]
    ).to(queries.plain.device)
    starts = torch.tensor([0, *accumulate(lens)], dtype=torch.int32)
    part = _Part(
        query_start_loc=starts.to(batch.query_start_loc.device),
        seq_lens=batch.seq_lens[rows],
        block_tables=batch.block_tables[rows],
        query_lens_list=lens,
        seq_lens_list=[batch.seq_lens_list[row] for row in rows],
    )
    return places, LatentQueries(queries.plain[places], queries.rotated[places]), part


def _absorbed(
    queries: LatentQueries,
    weights: LatentWeights,
    kv_cache: Tensor | QuantizedCache,
    layer: int,
    batch: RaggedBatch,
    scale: float,
    workspace: Workspace,
) -> Tensor:
    """Attend with one key/value head, whose rows are keys and values at once."""
    latents = torch.einsum("thd,hdc->thc", queries.plain, weights.up_keys)
    q = torch.cat((latents, queries.rotated), dim=-1)
    mixed = paged_attention(q, kv_cache, layer, batch, Scores(scale=scale), workspace=workspace)
    return torch.einsum("thc,hdc->thd", mixed[..., : weights.latent_dim], weights.up_values)


def _expand(
    queries: LatentQueries, weights: LatentWeights, rows: Tensor, scale: float, out: Tensor
) -> None:
    """Attend with the keys and values of one sequence's rows [length, row], some heads at a time.

    out: [num_new, num_heads, value_dim].
    """
    num_new, num_heads, _ = queries.plain.shape
    length, latent_dim = len(rows), weights.latent_dim
    latents, shared = rows[:, :latent_dim].contiguous(), rows[None, :, latent_dim:]
    visible = None
    if num_new < length:
        positions = torch.arange(length, device=rows.device)
        visible = positions <= positions[length - num_new :, None]
    # PyTorch's fast attention needs heads of one size.
    key_dim = weights.up_keys.shape[1] + shared.shape[2]
    size = max(key_dim, out.shape[2])
    step = max(1, _EXPANDED_BYTES // (2 * (length + num_new) * size * rows.element_size()))
    for first in range(0, num_heads, step):
        heads = slice(first, first + step)
        keys, values = (
            linear(latents, weight[heads].flatten(0, 1)).unflatten(1, (-1, weight.shape[1]))
            for weight in weights
        )
        keys = torch.cat((keys.transpose(0, 1), shared.expand(keys.shape[1], -1, -1)), dim=-1)
        own = torch.cat((queries.plain[:, heads], queries.rotated[:, heads]), dim=-1)
        mixed = scaled_dot_product_attention(
            pad(own, (0, size - key_dim)).transpose(0, 1)[None],
            pad(keys, (0, size - key_dim))[None],
            pad(values, (0, size - values.shape[2])).transpose(0, 1)[None],
            visible,
            is_causal=visible is None,
            scale=scale,
        )
        out[:, heads] = mixed[0, ..., : values.shape[2]].transpose(0, 1)
