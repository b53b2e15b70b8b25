"""Paged attention in Triton: flash attention (Dao et al. 2022) over a block table.

One program computes a tile of queries of one sequence for all query heads of one key/value head, so
that keys and values are read once per group and tensor cores have enough rows at decode too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.paged_attention.batch import RaggedBatch

_LOG2_E = 1.4426950408889634


@triton.jit
def paged_attention_kernel(
    q,
    cache,  # of one layer
    out,
    query_start_loc,
    seq_lens,
    block_tables,
    log2_scale,
    window,
    stride_qt,
    stride_qh,
    stride_ot,
    stride_oh,
    stride_cb,
    stride_ckv,
    stride_ch,
    stride_cs,
    stride_table,
    GROUP: tl.constexpr,  # query heads per key/value head
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,  # tokens per block of the cache
    ROWS: tl.constexpr,  # query tokens times heads of the group
    KEYS: tl.constexpr,  # context tokens per step
    HAS_WINDOW: tl.constexpr,
):
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    first_token = tl.load(query_start_loc + sequence)
    num_new = tl.load(query_start_loc + sequence + 1) - first_token
    QUERIES: tl.constexpr = ROWS // GROUP
    first_query = tl.program_id(2) * QUERIES
    if first_query >= num_new:
        return
    length = tl.load(seq_lens + sequence)
    row = tl.arange(0, ROWS)
    query = first_query + row // GROUP
    is_real = (row < QUERIES * GROUP) & (query < num_new)
    position = length - num_new + query
    head = kv_head * GROUP + row % GROUP
    dim = tl.arange(0, PADDED_DIM)
    inside = dim < HEAD_DIM
    token = (first_token + query).to(tl.int64)
    q_tile = tl.load(
        q + token[:, None] * stride_qt + head[:, None] * stride_qh + dim,
        mask=is_real[:, None] & inside,
        other=0.0,
    )
    # The queries of the tile see no key outside of [begin, end).
    end = tl.minimum(length - num_new + first_query + QUERIES, length)
    begin = 0
    if HAS_WINDOW:
        begin = tl.maximum(length - num_new + first_query - window + 1, 0)
    head_cache = cache + kv_head * stride_ch
    # A row's sums are worth nothing until its first visible key sets the peak: exp2 of the
    # difference is then zero and clears them.
    peak = tl.full([ROWS], -1.0e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, PADDED_DIM], tl.float32)
    for start in range(begin // KEYS * KEYS, end, KEYS):
        key = start + tl.arange(0, KEYS)
        exists = (key >= begin) & (key < end)
        block = tl.load(
            block_tables + sequence.to(tl.int64) * stride_table + key // BLOCK_SIZE,
            mask=exists,
            other=0,
        ).to(tl.int64)
        place = block * stride_cb + key % BLOCK_SIZE * stride_cs
        # What does not exist is read as zero: it may be NaN, which no weight of zero undoes.
        keys = tl.load(
            head_cache + place[None, :] + dim[:, None],
            mask=exists[None, :] & inside[:, None],
            other=0.0,
        )
        values = tl.load(
            head_cache + stride_ckv + place[:, None] + dim[None, :],
            mask=exists[:, None] & inside[None, :],
            other=0.0,
        )
        scores = tl.dot(q_tile, keys, input_precision="ieee") * log2_scale
        visible = exists[None, :] & (key[None, :] <= position[:, None])
        if HAS_WINDOW:
            visible &= key[None, :] > position[:, None] - window
        scores = tl.where(visible, scores, -1.0e30)
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        shrink = tl.exp2(peak - new_peak)
        weights = tl.exp2(scores - new_peak[:, None])
        total = total * shrink + tl.sum(weights, 1)
        mixed = mixed * shrink[:, None]
        mixed = tl.dot(weights.to(values.dtype), values, mixed, input_precision="ieee")
        peak = new_peak
    mixed = mixed / total[:, None]
    tl.store(
        out + token[:, None] * stride_ot + head[:, None] * stride_oh + dim,
        mixed.to(out.dtype.element_ty),
        mask=is_real[:, None] & inside,
    )


class TileSizes(NamedTuple):
    """How much one program takes on."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


def choose_tile_sizes(
    *, group: int, head_dim: int, max_query_len: int, element_bytes: int
) -> TileSizes:
    """Tiles that fit shared memory and registers of sm_80 and sm_90; `compile_gate` checks it."""
    least_rows = triton.next_power_of_2(group)
    if element_bytes > 2:  # products in full float32 run on ordinary cores, out of registers
        rows, num_warps = (16, 4) if max_query_len * group <= 16 else (32, 8)
        return TileSizes(max(rows, least_rows), 16, num_warps, 2)
    if max_query_len * group <= 16:
        return TileSizes(max(16, least_rows), 64 if head_dim <= 128 else 32, 4, 2)
    if head_dim > 128:
        return TileSizes(max(32, least_rows), 32, 8, 2)
    # The masks of a padded head take registers.
    keys = 64 if head_dim == triton.next_power_of_2(head_dim) else 32
    return TileSizes(max(128, least_rows), keys, 8, 2)


def launch(
    q: Tensor, cache: Tensor, batch: RaggedBatch, scale: float, sliding_window: int | None
) -> Tensor:
    """See `kernels.paged_attention.paged_attention`.

    cache: one layer's [num_blocks, 2, num_kv_heads, block_size, head_dim]. The last dimension of q
    and the cache must be contiguous.
    """
    num_heads, head_dim = q.shape[1:]
    num_kv_heads, block_size = cache.shape[2:4]
    group = num_heads // num_kv_heads
    max_query_len = max(batch.query_lens_list)
    tiles = choose_tile_sizes(
        group=group,
        head_dim=head_dim,
        max_query_len=max_query_len,
        element_bytes=q.element_size(),
    )
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    num_tiles = triton.cdiv(max_query_len, tiles.rows // group)
    paged_attention_kernel[(len(batch.seq_lens), num_kv_heads, num_tiles)](
        q,
        cache,
        out,
        batch.query_start_loc,
        batch.seq_lens,
        batch.block_tables,
        scale * _LOG2_E,
        sliding_window or 0,
        *q.stride()[:2],
        *out.stride()[:2],
        *cache.stride()[:4],
        batch.block_tables.stride(0),
        GROUP=group,
        HEAD_DIM=head_dim,
        PADDED_DIM=max(16, triton.next_power_of_2(head_dim)),
        BLOCK_SIZE=block_size,
        ROWS=tiles.rows,
        KEYS=tiles.keys,
        HAS_WINDOW=sliding_window is not None,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    return out
