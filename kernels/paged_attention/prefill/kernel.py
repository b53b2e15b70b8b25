"""Causal prefill attention in Triton: flash attention (Dao et al. 2022) over a block table.

One program computes a tile of queries of one sequence for all query heads of one key/value head.
The tile's rows are queries times heads: a group of any size fills it, and few of its keys are
masked. A packed ragged batch has about as many programs as tiles; each searches its sequence. New
keys and values are read from the cache like old ones, so that the result does not depend on how
a prompt is cut into steps.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.paged_attention.kernel import cap_scores, load_sinks


@triton.jit
def _attend_keys(
    start,
    end,
    block,  # of each of these keys
    q_tile,
    peak,
    total,
    mixed,
    head_cache,
    head_scales,  # None for a plain cache
    table,
    position,
    window,
    front,  # the first key that any row sees
    log2_scale,
    softcap,
    stride_cb,
    stride_ckv,
    stride_cs,
    stride_sb,
    stride_skv,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KEYS: tl.constexpr,
    MASKED: tl.constexpr,  # some row may not see some of these keys
    HAS_WINDOW: tl.constexpr,
    QUANTIZED: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
):
    """Take one step of the loop over the keys.

    Returns the next step's blocks, and the new peak, total and mixed values.
    """
    key = start + tl.arange(0, KEYS)
    dim = tl.arange(0, PADDED_DIM)
    exists = key < end
    if HAS_WINDOW:
        exists &= key >= front
    place = block.to(tl.int64) * stride_cb + key % BLOCK_SIZE * stride_cs
    if QUANTIZED:
        scales_at = head_scales + block.to(tl.int64) * stride_sb + key % BLOCK_SIZE
    # A step ahead: a load whose address is being loaded would not overlap with arithmetic.
    block = tl.load(table + (key + KEYS) // BLOCK_SIZE, mask=key + KEYS < end, other=0)
    keys_at = head_cache + place[None, :] + dim[:, None]
    values_at = head_cache + stride_ckv + place[:, None] + dim[None, :]
    # Keys and values past the end, or in front of the window, are read as zero: they may be NaN,
    # and zero times NaN is NaN.
    if MASKED:
        inside = dim < HEAD_DIM
        keys = tl.load(keys_at, mask=exists[None, :] & inside[:, None], other=0.0)
        values = tl.load(values_at, mask=exists[:, None] & inside[None, :], other=0.0)
    elif HEAD_DIM != PADDED_DIM:
        keys = tl.load(keys_at, mask=(dim < HEAD_DIM)[:, None], other=0.0)
        values = tl.load(values_at, mask=(dim < HEAD_DIM)[None, :], other=0.0)
    else:
        keys = tl.load(keys_at)
        values = tl.load(values_at)
    if QUANTIZED:
        # Scales and conversions: see the decode kernel.
        if MASKED:
            key_scales = tl.load(scales_at, mask=exists, other=0.0)
            value_scales = tl.load(scales_at + stride_skv, mask=exists, other=0.0)
        else:
            key_scales = tl.load(scales_at)
            value_scales = tl.load(scales_at + stride_skv)
        keys = keys.to(tl.float32).to(q_tile.dtype)
    scores = tl.dot(q_tile, keys, input_precision="ieee")
    remaining_scale = log2_scale
    if QUANTIZED:
        scores = scores * (key_scales * log2_scale)[None, :]
        remaining_scale = 1.0
    if HAS_SOFTCAP:
        scores = cap_scores(scores * remaining_scale, softcap)
        remaining_scale = 1.0
    if MASKED:
        if HAS_WINDOW:
            # A row that sees keys past the end is past the last query: it is not stored.
            visible = (key[None, :] <= position[:, None]) & (
                key[None, :] > position[:, None] - window
            )
        else:
            visible = exists[None, :] & (key[None, :] <= position[:, None])
        scores = tl.where(visible, scores, -1.0e30)
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
    return block, new_peak, total, mixed


@triton.jit
def paged_prefill_kernel(
    q,
    cache,  # of one layer
    scales,  # of one layer; None, like their strides, for a plain cache
    out,
    query_start_loc,
    seq_lens,
    block_tables,
    num_seqs,
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
    ROWS: tl.constexpr,  # query tokens times heads of the group
    KEYS: tl.constexpr,  # context tokens per step
    HAS_WINDOW: tl.constexpr,
    SCAN: tl.constexpr,
    QUANTIZED: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    # The tiles of late queries, which have the most keys, start first.
    work = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    QUERIES: tl.constexpr = ROWS // GROUP
    # Sequence i's tiles are numbered from start // QUERIES + i on: it gets as many numbers as it
    # has tiles, or one more.
    sequence = -1
    for at in range(0, num_seqs, SCAN):
        lane = at + tl.arange(0, SCAN)
        starts = tl.load(query_start_loc + lane, mask=lane < num_seqs, other=0)
        is_begun = (starts // QUERIES + lane <= work) & (lane < num_seqs)
        sequence += tl.sum(is_begun.to(tl.int32), 0)
    first_token = tl.load(query_start_loc + sequence)
    num_new = tl.load(query_start_loc + sequence + 1) - first_token
    first_query = (work - (first_token // QUERIES + sequence)) * QUERIES
    # A sequence with one new token belongs to the decode kernel.
    if (first_query >= num_new) | (num_new == 1):
        return

    length = tl.load(seq_lens + sequence)
    row = tl.arange(0, ROWS)
    query = first_query + row // GROUP
    dim = tl.arange(0, PADDED_DIM)
    is_real = ((row < QUERIES * GROUP) & (query < num_new))[:, None] & (dim < HEAD_DIM)[None, :]
    position = length - num_new + query
    head = kv_head * GROUP + row % GROUP
    token = (first_token + query).to(tl.int64)
    q_tile = tl.load(
        q + token[:, None] * stride_qt + head[:, None] * stride_qh + dim[None, :],
        mask=is_real,
        other=0.0,
    )
    head_cache = cache + kv_head * stride_ch
    head_scales = None
    if QUANTIZED:
        head_scales = scales + kv_head * stride_sh
    table = block_tables + tl.cast(sequence, tl.int64) * stride_table
    # Until its first visible key or its sink sets a row's peak, its sums have no meaning: exp2 of
    # the difference of peaks is then zero and clears them.
    peak = tl.full([ROWS], -1.0e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, PADDED_DIM], tl.float32)
    if HAS_SINKS:
        # A sink is a row's first score. It has no value.
        peak = load_sinks(sinks, head, row < QUERIES * GROUP)
        total += 1.0
    first_position = length - num_new + first_query
    end = tl.minimum(first_position + QUERIES, length)
    front = 0
    if HAS_WINDOW:
        front = tl.maximum(first_position - window + 1, 0)
    begin = front // KEYS * KEYS
    key = begin + tl.arange(0, KEYS)
    block = tl.load(table + key // BLOCK_SIZE, mask=key < end, other=0)
    if HAS_WINDOW:
        diagonal = begin
    else:
        diagonal = (first_position + 1) // KEYS * KEYS  # every row sees all keys before it
        for start in range(0, diagonal, KEYS):
            block, peak, total, mixed = _attend_keys(
                start,
                end,
                block,
                q_tile,
                peak,
                total,
                mixed,
                head_cache,
                head_scales,
                table,
                position,
                window,
                front,
                log2_scale,
                softcap,
                stride_cb,
                stride_ckv,
                stride_cs,
                stride_sb,
                stride_skv,
                HEAD_DIM,
                PADDED_DIM,
                BLOCK_SIZE,
                KEYS,
                False,
                HAS_WINDOW,
                QUANTIZED,
                HAS_SOFTCAP,
            )
    for start in range(diagonal, end, KEYS):
        block, peak, total, mixed = _attend_keys(
            start,
            end,
            block,
            q_tile,
            peak,
            total,
            mixed,
            head_cache,
            head_scales,
            table,
            position,
            window,
            front,
            log2_scale,
            softcap,
            stride_cb,
            stride_ckv,
            stride_cs,
            stride_sb,
            stride_skv,
            HEAD_DIM,
            PADDED_DIM,
            BLOCK_SIZE,
            KEYS,
            True,
            HAS_WINDOW,
            QUANTIZED,
            HAS_SOFTCAP,
        )
    mixed = mixed / total[:, None]
    tl.store(
        out + token[:, None] * stride_ot + head[:, None] * stride_oh + dim[None, :],
        mixed.to(out.dtype.element_ty),
        mask=is_real,
    )
