"""Attention of one new token per sequence over latent rows, in Triton.

A row is the key of all heads, and its first numbers are their value, so one program reads a row
once for several heads. Sequences are divided into parts as in `kernels/paged_attention/decode`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.paged_attention.parts.kernel import find_part, merge_parts

#: No row is out of sight.
_NO_WINDOW = tl.constexpr(1 << 30)


@triton.jit
def latent_decode_kernel(
    latents,  # queries that meet the rows' first numbers
    rotated,  # queries that meet the others
    cache,  # of one layer
    scales,  # of one layer; None, like their stride, for a plain cache
    out,
    partial_out,  # float32 [max_partials, tiles of heads, HEADS, LATENT_DIM]
    partial_sum,  # float32 [max_partials, tiles of heads, HEADS]: log2 of the sum of weights
    arrivals,  # int32 [max_partials, tiles of heads], zero before and after
    query_start_loc,
    seq_lens,
    block_tables,
    num_heads,
    num_seqs,
    target_programs,
    log2_scale,
    stride_lt,
    stride_lh,
    stride_rt,
    stride_rh,
    stride_ot,
    stride_oh,
    stride_cb,
    stride_cs,
    stride_sb,
    stride_table,
    HEADS: tl.constexpr,  # of one program
    LATENT_DIM: tl.constexpr,
    PADDED_LATENT: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    PADDED_ROPE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,  # tokens per block of the cache
    KEYS: tl.constexpr,  # context tokens per step
    MIN_CHUNK: tl.constexpr,
    SCAN: tl.constexpr,
    QUANTIZED: tl.constexpr,
):
    tile = tl.program_id(0)
    work = tl.program_id(1)  # number of the part, over all sequences
    num_tiles = tl.num_programs(0)
    has_work, sequence, chunk, first, num_whole = find_part(
        query_start_loc,
        seq_lens,
        num_seqs,
        _NO_WINDOW,
        work,
        num_tiles,
        target_programs,
        KEYS,
        MIN_CHUNK,
        SCAN,
    )
    if not has_work:
        return
    length = tl.load(seq_lens + sequence)
    num_parts = tl.maximum(tl.cdiv(length, chunk), 1)
    # At most a chunk, so the last part is not empty.
    size = tl.cdiv(tl.cdiv(length, num_parts), KEYS) * KEYS
    begin = (work - first) * size
    end = tl.minimum(begin + size, length)

    row = tl.arange(0, HEADS)
    head = tile * HEADS + row
    has_head = (head < num_heads)[:, None]
    dim, rope_dim = tl.arange(0, PADDED_LATENT), tl.arange(0, PADDED_ROPE)
    has_dim, has_rope_dim = dim < LATENT_DIM, rope_dim < ROPE_DIM
    token = tl.load(query_start_loc + sequence).to(tl.int64)
    latent_tile = tl.load(
        latents + token * stride_lt + head[:, None] * stride_lh + dim[None, :],
        mask=has_head & has_dim[None, :],
        other=0.0,
    )
    rotated_tile = tl.load(
        rotated + token * stride_rt + head[:, None] * stride_rh + rope_dim[None, :],
        mask=has_head & has_rope_dim[None, :],
        other=0.0,
    )
    table = block_tables + tl.cast(sequence, tl.int64) * stride_table
    peak = tl.full([HEADS], -1.0e30, tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    mixed = tl.zeros([HEADS, PADDED_LATENT], tl.float32)
    key = begin + tl.arange(0, KEYS)
    block = tl.load(table + key // BLOCK_SIZE, mask=key < end, other=0)
    for start in range(begin, end, KEYS):
        key = start + tl.arange(0, KEYS)
        exists = key < end
        place = block.to(tl.int64) * stride_cb + key % BLOCK_SIZE * stride_cs
        if QUANTIZED:
            scales_at = scales + block.to(tl.int64) * stride_sb + key % BLOCK_SIZE
        # A step ahead: a load whose address is being loaded would not overlap with arithmetic.
        block = tl.load(table + (key + KEYS) // BLOCK_SIZE, mask=key + KEYS < end, other=0)
        # Rows past the end are read as zero: they may be NaN, and zero times NaN is NaN.
        values = tl.load(
            cache + place[:, None] + dim[None, :],
            mask=exists[:, None] & has_dim[None, :],
            other=0.0,
        )
        shared = tl.load(
            cache + LATENT_DIM + place[None, :] + rope_dim[:, None],
            mask=exists[None, :] & has_rope_dim[:, None],
            other=0.0,
        )
        if QUANTIZED:
            # One scale multiplies the scores, and the weights. See `paged_decode_kernel`.
            row_scales = tl.load(scales_at, mask=exists, other=0.0)
            values = values.to(tl.float32).to(latent_tile.dtype)
            shared = shared.to(tl.float32).to(latent_tile.dtype)
        scores = tl.dot(latent_tile, tl.trans(values), input_precision="ieee")
        scores = tl.dot(rotated_tile, shared, scores, input_precision="ieee") * log2_scale
        if QUANTIZED:
            scores *= row_scales[None, :]
        scores = tl.where(exists[None, :], scores, -1.0e30)
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        shrink = tl.exp2(peak - new_peak)
        weights = tl.exp2(scores - new_peak[:, None])
        total = total * shrink + tl.sum(weights, 1)
        if QUANTIZED:
            weights *= row_scales[None, :]
        mixed = mixed * shrink[:, None]
        mixed = tl.dot(weights.to(values.dtype), values, mixed, input_precision="ieee")
        peak = new_peak
    # A sequence of no tokens, which pads a batch, gets zeros.
    mixed = mixed / tl.maximum(total, 1.0e-30)[:, None]

    if num_parts == 1:
        out_row = out + token * stride_ot + head[:, None] * stride_oh
        tl.store(
            out_row + dim[None, :],
            mixed.to(out.dtype.element_ty),
            mask=has_head & has_dim[None, :],
        )
    else:
        partial = (work - num_whole) * num_tiles + tile
        partial_row = (partial * HEADS + row)[:, None] * LATENT_DIM
        tl.store(partial_out + partial_row + dim[None, :], mixed, mask=has_head & has_dim[None, :])
        tl.store(partial_sum + partial * HEADS + row, peak + tl.log2(total), mask=head < num_heads)
        # All threads' stores come before the count, and the count before the last one's loads.
        tl.debug_barrier()
        first_partial = (first - num_whole) * num_tiles + tile
        arrived = tl.atomic_add(arrivals + first_partial, 1, sem="acq_rel", scope="gpu")
        if arrived == num_parts - 1:
            tl.store(arrivals + first_partial, 0)
            merge_parts(
                partial_out,
                partial_sum,
                out + token * stride_ot + tile * HEADS * stride_oh,
                first_partial,
                num_tiles,
                num_parts,
                tl.minimum(num_heads - tile * HEADS, HEADS),
                stride_oh,
                HEADS,
                LATENT_DIM,
                PADDED_LATENT,
                HEADS,
                1,
            )
