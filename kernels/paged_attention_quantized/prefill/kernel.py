"""Causal prefill attention over a cache in 8 bits, in Triton.

Divided as `kernels.paged_attention.prefill` does it; only the steps over the keys differ: scales
belong to keys, so they go to the scores and the weights, one product per key and not per number.
New tokens are read back from the cache like old ones: what a token sees must not depend on how its
prompt was cut into steps.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.paged_attention.prefill.launch import PrefillTiles


@triton.jit
def _attend_keys(
    start,
    end,
    block,  # of each of these keys
    q_tile,
    peak,
    total,
    mixed,
    head_values,
    head_scales,
    table,
    position,
    window,
    log2_scale,
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
):
    """One step of the loop over the keys."""
    key = start + tl.arange(0, KEYS)
    dim = tl.arange(0, PADDED_DIM)
    exists = key < end
    place = block.to(tl.int64) * stride_cb + key % BLOCK_SIZE * stride_cs
    scale_place = head_scales + block.to(tl.int64) * stride_sb + key % BLOCK_SIZE
    # A step ahead: a load whose address is being loaded would not overlap with arithmetic.
    block = tl.load(table + (key + KEYS) // BLOCK_SIZE, mask=key + KEYS < end, other=0)
    keys_at = head_values + place[None, :] + dim[:, None]
    values_at = head_values + stride_ckv + place[:, None] + dim[None, :]
    # What does not exist is read as zero: it may be NaN, which no weight of zero undoes.
    if MASKED:
        inside = dim < HEAD_DIM
        keys = tl.load(keys_at, mask=exists[None, :] & inside[:, None], other=0.0)
        values = tl.load(values_at, mask=exists[:, None] & inside[None, :], other=0.0)
        key_scales = tl.load(scale_place, mask=exists, other=0.0)
        value_scales = tl.load(scale_place + stride_skv, mask=exists, other=0.0)
    else:
        if HEAD_DIM != PADDED_DIM:
            keys = tl.load(keys_at, mask=(dim < HEAD_DIM)[:, None], other=0.0)
            values = tl.load(values_at, mask=(dim < HEAD_DIM)[None, :], other=0.0)
        else:
            keys = tl.load(keys_at)
            values = tl.load(values_at)
        key_scales = tl.load(scale_place)
        value_scales = tl.load(scale_place + stride_skv)
    # 8 bits are exact in every wider type, and to bfloat16 the way by float32 is shorter.
    wide_keys = keys.to(tl.float32).to(q_tile.dtype)
    scores = tl.dot(q_tile, wide_keys, input_precision="ieee") * (key_scales * log2_scale)[None, :]
    if MASKED:
        visible = exists[None, :] & (key[None, :] <= position[:, None])
        if HAS_WINDOW:
            visible &= key[None, :] > position[:, None] - window
        scores = tl.where(visible, scores, -1.0e30)
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    shrink = tl.exp2(peak - new_peak)
    weights = tl.exp2(scores - new_peak[:, None])
    total = total * shrink + tl.sum(weights, 1)
    weights = (weights * value_scales[None, :]).to(q_tile.dtype)
    mixed = mixed * shrink[:, None]
    wide_values = values.to(tl.float32).to(q_tile.dtype)
    mixed = tl.dot(weights, wide_values, mixed, input_precision="ieee")
    return block, new_peak, total, mixed


@triton.jit
def paged_prefill_quantized_kernel(
    q,
    values,  # of one layer
    scales,  # of one layer
    out,
    query_start_loc,
    seq_lens,
    block_tables,
    num_seqs,
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
    ROWS: tl.constexpr,  # query tokens times heads of the group
    KEYS: tl.constexpr,  # context tokens per step
    HAS_WINDOW: tl.constexpr,
    SCAN: tl.constexpr,
):
    # The tiles of late queries, which have the most keys, start first.
    work = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    QUERIES: tl.constexpr = ROWS // GROUP
    # Sequence i's tiles are numbered from start // QUERIES + i on: at least as many numbers as it
    # has tiles, at most one too many.
    sequence = -1
    for at in range(0, num_seqs, SCAN):
        lane = at + tl.arange(0, SCAN)
        starts = tl.load(query_start_loc + lane, mask=lane < num_seqs, other=0)
        is_begun = (starts // QUERIES + lane <= work) & (lane < num_seqs)
        sequence += tl.sum(is_begun.to(tl.int32), 0)
    first_token = tl.load(query_start_loc + sequence)
    num_new = tl.load(query_start_loc + sequence + 1) - first_token
    first_query = (work - (first_token // QUERIES + sequence)) * QUERIES
    # One new token is the decode kernel's.
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
    head_values = values + kv_head * stride_ch
    head_scales = scales + kv_head * stride_sh
    table = block_tables + tl.cast(sequence, tl.int64) * stride_table
    # A row's sums are worth nothing until its first visible key sets the peak: exp2 of the
    # difference is then zero and clears them.
    peak = tl.full([ROWS], -1.0e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, PADDED_DIM], tl.float32)
    first_position = length - num_new + first_query
    end = tl.minimum(first_position + QUERIES, length)
    begin = 0
    if HAS_WINDOW:
        begin = tl.maximum(first_position - window + 1, 0) // KEYS * KEYS
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
                head_values,
                head_scales,
                table,
                position,
                window,
                log2_scale,
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
            head_values,
            head_scales,
            table,
            position,
            window,
            log2_scale,
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
        )
    mixed = mixed / total[:, None]
    tl.store(
        out + token[:, None] * stride_ot + head[:, None] * stride_oh + dim[None, :],
        mixed.to(out.dtype.element_ty),
        mask=is_real,
    )


#: Rows, keys, warps and stages by the largest head size. Widening takes registers: tiles are
#: smaller than without, and on Ampere, where operands of products lie in registers, smaller still.
_HOPPER_TILES = ((64, (128, 64, 8, 3)), (128, (64, 64, 4, 3)), (256, (64, 32, 8, 2)))
_AMPERE_TILES = ((64, (128, 64, 8, 3)), (128, (64, 32, 4, 3)), (256, (64, 32, 8, 2)))
_SCAN = 128


def prefill_constants(
    *, group: int, head_dim: int, block_size: int, element_bytes: int, has_window: bool, arch: int
) -> tuple[dict[str, int | bool], PrefillTiles]:
    """The kernel's constants and the tiles that they stand for, which `compile_gate` checks.

    element_bytes: of the queries.
    """
    tiles = _choose_tiles(group=group, head_dim=head_dim, element_bytes=element_bytes, arch=arch)
    constants = {
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "PADDED_DIM": max(32, triton.next_power_of_2(head_dim)),
        "BLOCK_SIZE": block_size,
        "ROWS": tiles.rows,
        "KEYS": tiles.keys,
        "HAS_WINDOW": has_window,
        "SCAN": _SCAN,
    }
    return constants, tiles


def _choose_tiles(*, group: int, head_dim: int, element_bytes: int, arch: int) -> PrefillTiles:
    least_rows = triton.next_power_of_2(group)
    if element_bytes > 2:  # products in full float32 run on ordinary cores, out of registers
        return PrefillTiles(max(16, least_rows), 16, 8, 2)
    table = _AMPERE_TILES if arch < 90 else _HOPPER_TILES
    rows, keys, num_warps, num_stages = next(row for most, row in table if head_dim <= most)
    return PrefillTiles(max(rows, least_rows), keys, num_warps, num_stages)
