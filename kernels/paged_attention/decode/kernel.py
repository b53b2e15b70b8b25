"""Decode attention in Triton: one program per key/value head and part of a sequence's keys.

The query heads of a group are the rows of one tile, so that keys and values are read once per group
and tensor cores can multiply them. The last program of a sequence and head to finish merges the
parts. It always merges them in their order: one launch, and the same sums every time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.paged_attention.kernel import cap_scores, load_sinks
from kernels.paged_attention.parts.kernel import find_part, merge_parts


@triton.jit
def paged_decode_kernel(
    q,
    cache,  # of one layer
    scales,  # of one layer; None, like their strides, for a plain cache
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
    softcap,  # None without a cap
    sinks,  # float32 [num_heads]; None without sinks
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
    QUANTIZED: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    kv_head = tl.program_id(0)
    work = tl.program_id(1)  # number of the part, over all sequences
    num_kv_heads = tl.num_programs(0)
    has_work, sequence, chunk, first, num_whole = find_part(
        query_start_loc,
        seq_lens,
        num_seqs,
        window,
        work,
        num_kv_heads,
        target_programs,
        KEYS,
        MIN_CHUNK,
        SCAN,
    )
    if not has_work:
        return

    length = tl.load(seq_lens + sequence)
    begin = tl.maximum(length - window, 0)
    num_parts = tl.maximum(tl.cdiv(length - begin, chunk), 1)
    # At most a chunk, so the last part is not empty.
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
    head_cache = cache + kv_head * stride_ch
    if QUANTIZED:
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
        if QUANTIZED:
            scales_at = head_scales + block.to(tl.int64) * stride_sb + key % BLOCK_SIZE
        # A step ahead: a load whose address is being loaded would not overlap with arithmetic.
        block = tl.load(table + (key + KEYS) // BLOCK_SIZE, mask=key + KEYS < end, other=0)
        # Keys and values past the end are read as zero: they may be NaN, and zero times NaN is NaN.
        keys = tl.load(
            head_cache + place[None, :] + dim[:, None],
            mask=exists[None, :] & inside[:, None],
            other=0.0,
        )
        if QUANTIZED:
            key_scales = tl.load(scales_at, mask=exists, other=0.0)
        values = tl.load(
            head_cache + stride_ckv + place[:, None] + dim[None, :],
            mask=exists[:, None] & inside[None, :],
            other=0.0,
        )
        if QUANTIZED:
            value_scales = tl.load(scales_at + stride_skv, mask=exists, other=0.0)
            # The scales of keys multiply the scores, and those of values the weights: one product
            # per key, not one per number. Every wider type holds 8 bits exactly. bfloat16 is
            # reached by way of float32, from which two numbers at a time are converted.
            keys = keys.to(tl.float32).to(q_tile.dtype)
        scores = tl.dot(q_tile, keys, input_precision="ieee")
        remaining_scale = log2_scale
        if QUANTIZED:
            scores = scores * (key_scales * log2_scale)[None, :]
            remaining_scale = 1.0
        if HAS_SOFTCAP:
            scores = cap_scores(scores * remaining_scale, softcap)
            remaining_scale = 1.0
        scores = tl.where(exists[None, :], scores, -1.0e30)
        new_peak = tl.maximum(peak, tl.max(scores, 1) * remaining_scale)
        shrink = tl.exp2(peak - new_peak)
        weights = tl.exp2(scores * remaining_scale - new_peak[:, None])
        total = total * shrink + tl.sum(weights, 1)
        if QUANTIZED:
            weights = (weights * value_scales[None, :]).to(q_tile.dtype)
        mixed = mixed * shrink[:, None]
        if QUANTIZED:
            values = values.to(tl.float32).to(q_tile.dtype)
        mixed = tl.dot(weights.to(values.dtype), values, mixed, input_precision="ieee")
        peak = new_peak
    if HAS_SINKS:
        # A sink is a score without a value. Of a sequence's parts only the first takes it.
        sink = tl.where(work == first, load_sinks(sinks, head, row < GROUP), -1.0e30)
        new_peak = tl.maximum(peak, sink)
        shrink = tl.exp2(peak - new_peak)
        total = total * shrink + tl.exp2(sink - new_peak)
        mixed = mixed * shrink[:, None]
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
            merge_parts(
                partial_out,
                partial_sum,
                out + token * stride_ot + kv_head * GROUP * stride_oh,
                first_partial,
                num_kv_heads,
                num_parts,
                GROUP,
                stride_oh,
                GROUP,
                HEAD_DIM,
                PADDED_DIM,
                MERGE_ROWS,
                MERGE_PARTS,
            )
