"""Products with packed weights in Triton.

A program computes a range of output features over a part of the input features. The weight is the
left operand, widened in registers, and the few tokens are the columns: tensor cores multiply 64
rows at a time, to which few tokens would have to be padded. The last program of a range to finish
adds up the parts, always in their order (split-K in one launch, the same sums every time).

How codes are widened is in `decoding`. A scale for a whole step, or for a whole row, is taken to
the sums in float32; others, and offsets, to the weight, which is then rounded to the type of x.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.weight_only_matmul.decoding.kernel import as_float, weight_tile


@triton.jit
def weight_only_matmul_kernel(
    x,
    values,
    scales,
    zeros,  # None without them
    offsets,  # None without them
    table,  # None without one
    out,
    partials,  # float32 [parts, tiles of tokens, tiles of channels, CHANNELS, TOKENS]
    arrivals,  # int32 [tiles of tokens, tiles of channels], zero before and after
    num_tokens,
    out_features,
    in_features,
    steps_per_part,
    stride_x,
    stride_out,
    CHANNELS: tl.constexpr,
    TOKENS: tl.constexpr,
    STEP: tl.constexpr,  # input features per step
    BITS: tl.constexpr,  # of a code: 4 or 8
    MANTISSA: tl.constexpr,  # bits of it, of floats; 0 of others
    MIDDLE: tl.constexpr,  # the code of 0 without zeros
    GROUP: tl.constexpr,  # input features that share a scale; 0: all of a row
    BY_COLUMN: tl.constexpr,  # whether scales are taken to the weight
    HAS_REST: tl.constexpr,  # whether the last step has fewer features
):
    part = tl.program_id(1)
    num_parts = tl.num_programs(1)
    tile = tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
    num_tiles = tl.num_programs(0) * tl.num_programs(2)
    WIDE: tl.constexpr = x.dtype.element_ty
    WIDTH: tl.constexpr = STEP * BITS // 8  # bytes of a row in a step
    BY_STEP: tl.constexpr = GROUP > 0 and not BY_COLUMN
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    token = tl.program_id(2) * TOKENS + tl.arange(0, TOKENS)
    has_channel, has_token = channel < out_features, token < num_tokens
    # Rows past the end wrap to the beginning, so loads need no masks; their results are not stored.
    row = (channel % out_features).to(tl.int64)[:, None]
    column = (token % num_tokens).to(tl.int64)[None, :] * stride_x
    total = tl.zeros([CHANNELS, TOKENS], tl.float32)
    num_steps = tl.cdiv(in_features, STEP)
    within_step = tl.arange(0, WIDTH)
    for step in range(part * steps_per_part, tl.minimum((part + 1) * steps_per_part, num_steps)):
        product = tl.zeros([CHANNELS, TOKENS], tl.float32) if BY_STEP else total
        if BITS == 4:
            stored = tl.load(values + (step * out_features + row) * WIDTH + within_step[None, :])
        else:
            place = values + row * in_features + (step * STEP + within_step)[None, :]
            if HAS_REST:
                inside = step * STEP + within_step < in_features
                stored = tl.load(place, mask=inside[None, :], other=0)
            else:
                stored = tl.load(place)
        for half in tl.static_range(8 // BITS):
            codes = stored if BITS == 8 else (stored & 0xF if half == 0 else stored >> 4)
            first = step * STEP + half * WIDTH
            feature = (first + within_step)[:, None]
            if HAS_REST:
                x_tile = tl.load(x + column + feature, mask=feature < in_features, other=0.0)
            else:
                x_tile = tl.load(x + column + feature)
            weight = weight_tile(
                codes, scales, zeros, offsets, table, first, row, in_features, out_features,
                WIDE, BITS, MANTISSA, MIDDLE, GROUP, BY_COLUMN,
            )  # fmt: skip
            product = tl.dot(weight, x_tile, product, input_precision="ieee")
        if BY_STEP:
            scale = tl.load(scales + step * STEP // GROUP * out_features + row)
            total += product * as_float(scale)
        else:
            total = product
    if GROUP == 0 and not BY_COLUMN:
        total *= as_float(tl.load(scales + row))
    out_place = out + token.to(tl.int64)[None, :] * stride_out + channel[:, None]
    is_real = has_channel[:, None] & has_token[None, :]
    if num_parts == 1:
        tl.store(out_place, total.to(WIDE), mask=is_real)
    else:
        within = tl.arange(0, CHANNELS)[:, None] * TOKENS + tl.arange(0, TOKENS)[None, :]
        own = partials + tile * (CHANNELS * TOKENS) + within
        stride_part = num_tiles * (CHANNELS * TOKENS)
        tl.store(own + part * stride_part, total)
        # All threads' stores come before the count, and the count before the last one's loads.
        tl.debug_barrier()
        arrived = tl.atomic_add(arrivals + tile, 1, sem="acq_rel", scope="gpu")
        if arrived == num_parts - 1:
            tl.store(arrivals + tile, 0)
            total = tl.zeros([CHANNELS, TOKENS], tl.float32)
            for other in range(num_parts):
                # Not from the multiprocessor's own cache, which others' stores do not reach.
                total += tl.load(own + other * stride_part, cache_modifier=".cg")
            tl.store(out_place, total.to(WIDE), mask=is_real)
