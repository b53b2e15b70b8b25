"""Decode attention over a cache in 8 bits, in Triton.

Divided and merged as `kernels.paged_attention.decode` does it; only the steps over the keys differ.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from kernels.paged_attention.decode.kernel import _merge_parts, _visible_keys
from kernels.paged_attention.splits import MIN_CHUNK

#: Sequences that are looked at together when a program searches its own.
_SCAN = 128
#: Numbers of partial results that are merged together, over all rows and dimensions.
_MERGED_NUMBERS = 2048


@triton.jit
def paged_decode_quantized_kernel(
    q,
    values,  # of one layer
    scales,  # of one layer
    out,
    partial_out,  # float32 [max_partials, num_kv_heads, GROUP, HEAD_DIM]
    partial_sum,  # float32 [max_partials, num_kv_heads, GROUP]: log2 of the sum of weights
    arrivals,  # int32 [max_partials, num_kv_heads], zero before and after
    query_start_loc,
    seq_lens,
    block_tables,
    num_seqs,
    target_programs,
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
    stride_sb,
    stride_skv,
    stride_sh,
    stride_table,
    GROUP: tl.constexpr,  # query heads per key/value head
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,  # tokens per block of the cache
    ROWS: tl.constexpr,  # at least GROUP, and what tensor cores need
    KEYS: tl.constexpr,  # context tokens per step
    MERGE_ROWS: tl.constexpr,  # GROUP to the next power of two
    MERGE_PARTS: tl.constexpr,  # partial results per step of merging
    MIN_CHUNK: tl.constexpr,
    SCAN: tl.constexpr,
):
    kv_head = tl.program_id(0)
    work = tl.program_id(1)  # parts of all sequences are numbered through
    num_kv_heads = tl.num_programs(0)
    lane = tl.arange(0, SCAN)

    # The rule of splits.py: chunks of one size for the whole batch.
    num_keys = tl.full([], 0, tl.int64)
    for at in range(0, num_seqs, SCAN):
        _, visible = _visible_keys(query_start_loc, seq_lens, at + lane, num_seqs, window)
        num_keys += tl.sum(visible.to(tl.int64), 0)
    wanted = tl.cdiv(num_keys * num_kv_heads, target_programs).to(tl.int32)
    chunk = tl.cdiv(tl.maximum(wanted, MIN_CHUNK), KEYS) * KEYS

    before = 0  # parts of the sequences that were looked at
    sequence = 0
    first = 0  # the first part of the sequence
    num_whole = 0  # sequences before it that have one part
    for at in range(0, num_seqs, SCAN):
        decodes, visible = _visible_keys(query_start_loc, seq_lens, at + lane, num_seqs, window)
        parts = tl.where(decodes, tl.maximum(tl.cdiv(visible, chunk), 1), 0)
        ends = before + tl.cumsum(parts, 0)
        is_before = (ends <= work) & (at + lane < num_seqs)
        sequence += tl.sum(is_before.to(tl.int32), 0)
        first = tl.maximum(first, tl.max(tl.where(is_before, ends, 0), 0))
        num_whole += tl.sum((is_before & (parts == 1)).to(tl.int32), 0)
        before += tl.sum(parts, 0)
    if work >= before:
        return

    length = tl.load(seq_lens + sequence)
    begin = tl.maximum(length - window, 0)
    num_parts = tl.maximum(tl.cdiv(length - begin, chunk), 1)
    # Never more than a chunk, so the last part is not empty.
    size = tl.cdiv(tl.cdiv(length - begin, num_parts), KEYS) * KEYS
    begin += (work - first) * size
    end = tl.minimum(begin + size, length)

    row = tl.arange(0, ROWS)
    dim = tl.arange(0, PADDED_DIM)
    inside = dim < HEAD_DIM
    is_real = (row < GROUP)[:, None] & inside[None, :]
    token = tl.load(query_start_loc + sequence).to(tl.int64)
    head = kv_head * GROUP + row
    q_tile = tl.load(
        q + token * stride_qt + head[:, None] * stride_qh + dim[None, :], mask=is_real, other=0.0
    )
    head_values = values + kv_head * stride_ch
    head_scales = scales + kv_head * stride_sh
    table = block_tables + tl.cast(sequence, tl.int64) * stride_table
    peak = tl.full([ROWS], -1.0e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, PADDED_DIM], tl.float32)
    key = begin + tl.arange(0, KEYS)
    block = tl.load(table + key // BLOCK_SIZE, mask=key < end, other=0)
    for start in range(begin, end, KEYS):
        key = start + tl.arange(0, KEYS)
        exists = key < end
        place = block.to(tl.int64) * stride_cb + key % BLOCK_SIZE * stride_cs
        scale_place = head_scales + block.to(tl.int64) * stride_sb + key % BLOCK_SIZE
        # A step ahead: a load whose address is being loaded would not overlap with arithmetic.
        block = tl.load(table + (key + KEYS) // BLOCK_SIZE, mask=key + KEYS < end, other=0)
        # What does not exist is read as zero: it may be NaN, which no weight of zero undoes.
        stored_keys = tl.load(
            head_values + place[None, :] + dim[:, None],
            mask=exists[None, :] & inside[:, None],
            other=0.0,
        )
        key_scales = tl.load(scale_place, mask=exists, other=0.0)
        stored_values = tl.load(
            head_values + stride_ckv + place[:, None] + dim[None, :],
            mask=exists[:, None] & inside[None, :],
            other=0.0,
        )
        value_scales = tl.load(scale_place + stride_skv, mask=exists, other=0.0)
        # Scales belong to keys, so they go to the scores and the weights: one product per key and
        # not one per number. 8 bits are exact in every wider type, and to bfloat16 the way by
        # float32 is shorter: from there two numbers at a time are converted.
        scores = tl.dot(q_tile, stored_keys.to(tl.float32).to(q_tile.dtype), input_precision="ieee")
        scores = scores * (key_scales * log2_scale)[None, :]
        scores = tl.where(exists[None, :], scores, -1.0e30)
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        shrink = tl.exp2(peak - new_peak)
        weights = tl.exp2(scores - new_peak[:, None])
        total = total * shrink + tl.sum(weights, 1)
        weights = (weights * value_scales[None, :]).to(q_tile.dtype)
        mixed = mixed * shrink[:, None]
        mixed = tl.dot(
            weights, stored_values.to(tl.float32).to(q_tile.dtype), mixed, input_precision="ieee"
        )
        peak = new_peak
    # A sequence of no tokens, which pads a batch, gets zeros.
    mixed = mixed / tl.maximum(total, 1.0e-30)[:, None]

    if num_parts == 1:
        out_row = out + token * stride_ot + head[:, None] * stride_oh
        tl.store(out_row + dim[None, :], mixed.to(out.dtype.element_ty), mask=is_real)
    else:
        partial = (work - num_whole) * num_kv_heads + kv_head
        partial_row = (partial * GROUP + row)[:, None] * HEAD_DIM
        tl.store(partial_out + partial_row + dim[None, :], mixed, mask=is_real)
        tl.store(partial_sum + partial * GROUP + row, peak + tl.log2(total), mask=row < GROUP)
        # All threads' stores come before the count, and the count before the last one's loads.
        tl.debug_barrier()
        first_partial = (first - num_whole) * num_kv_heads + kv_head
        arrived = tl.atomic_add(arrivals + first_partial, 1, sem="acq_rel", scope="gpu")
        if arrived == num_parts - 1:
            tl.store(arrivals + first_partial, 0)
            _merge_parts(
                partial_out,
                partial_sum,
                out + token * stride_ot + kv_head * GROUP * stride_oh,
                first_partial,
                num_kv_heads,
                num_parts,
                stride_oh,
                GROUP,
                HEAD_DIM,
                PADDED_DIM,
                MERGE_ROWS,
                MERGE_PARTS,
            )


class Tiles(NamedTuple):
    """How much one program takes on at a time."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


def choose_tiles(*, group: int, head_dim: int, element_bytes: int) -> Tiles:
    """Tiles that fit shared memory and registers of sm_80 and sm_90; `compile_gate` checks it."""
    rows = max(16, triton.next_power_of_2(group))
    if element_bytes > 2:  # products in full float32 run on ordinary cores, out of registers
        return Tiles(rows, 16, 8, 2)
    # Widening takes registers: with twice the keys of a large head half of the programs fit.
    return Tiles(rows, 64 if head_dim <= 64 and rows <= 16 else 32, 4, 4)


def decode_constants(
    *, group: int, head_dim: int, block_size: int, element_bytes: int
) -> tuple[dict[str, int], Tiles]:
    """The kernel's constants and the tiles that they stand for. element_bytes: of the queries."""
    tiles = choose_tiles(group=group, head_dim=head_dim, element_bytes=element_bytes)
    merge_rows, padded = triton.next_power_of_2(group), max(32, triton.next_power_of_2(head_dim))
    constants = {
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "PADDED_DIM": padded,
        "BLOCK_SIZE": block_size,
        "ROWS": tiles.rows,
        "KEYS": tiles.keys,
        "MERGE_ROWS": merge_rows,
        "MERGE_PARTS": max(1, _MERGED_NUMBERS // (merge_rows * padded)),
        "MIN_CHUNK": MIN_CHUNK,
        "SCAN": _SCAN,
    }
    return constants, tiles
