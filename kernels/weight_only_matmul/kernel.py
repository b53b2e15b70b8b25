"""Products with packed weights in Triton.

A program computes a range of output features over a part of the input features. The weight is the
left operand, widened in registers, and the few tokens are the columns: tensor cores multiply 64
rows at a time, to which few tokens would have to be padded. The last program of a range to finish
adds up the parts, always in their order (split-K in one launch, the same sums every time).

4 bits are widened without a conversion: as the lowest bits of 128 in bfloat16, or of 1024 in
float16, they add their value to it (Y. J. Kim et al., "Who says elephants can't run", 2022).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _widen_codes(codes, zeros, WIDE: tl.constexpr):
    """Return codes of 4 bits minus their zeros [rows, 1] in the type WIDE, exactly."""
    if tl.bfloat16 == WIDE:
        wide = (codes.to(tl.uint16) | 0x4300).to(tl.bfloat16, bitcast=True)
        zeros += 128.0
    elif tl.float16 == WIDE:
        wide = (codes.to(tl.uint16) | 0x6400).to(tl.float16, bitcast=True)
        zeros += 1024.0
    else:
        wide = codes.to(WIDE)
    return wide - zeros.to(WIDE)


@triton.jit
def weight_only_matmul_kernel(
    x,
    values,
    scales,
    zeros,
    out,
    partials,  # float32 [parts, tiles of tokens, tiles of channels, CHANNELS, TOKENS]
    arrivals,  # int32 [tiles of tokens, tiles of channels], zero before and after
    num_tokens,
    out_features,
    in_features,
    steps_per_part,
    stride_x,
    stride_values,  # from one output feature to the next, in 8 bits
    stride_out,
    CHANNELS: tl.constexpr,
    TOKENS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,  # input features per step
    IS_INT4: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_REST: tl.constexpr,  # whether the last step has fewer features
):
    part = tl.program_id(1)
    num_parts = tl.num_programs(1)
    tile = tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
    num_tiles = tl.num_programs(0) * tl.num_programs(2)
    HALF: tl.constexpr = GROUP_SIZE // 2
    WIDE: tl.constexpr = x.dtype.element_ty
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    token = tl.program_id(2) * TOKENS + tl.arange(0, TOKENS)
    has_channel, has_token = channel < out_features, token < num_tokens
    # Rows past the end wrap to the beginning, so loads need no masks; their results are not stored.
    row = (channel % out_features).to(tl.int64)[:, None]
    column = (token % num_tokens).to(tl.int64)[None, :] * stride_x
    total = tl.zeros([CHANNELS, TOKENS], tl.float32)
    num_steps = tl.cdiv(in_features, GROUP_SIZE)
    for step in range(part * steps_per_part, tl.minimum((part + 1) * steps_per_part, num_steps)):
        if IS_INT4:
            group_row = step * out_features + row
            packed = tl.load(values + group_row * HALF + tl.arange(0, HALF)[None, :])
            zero = tl.full([CHANNELS, 1], 8.0, tl.float32)
            if HAS_ZEROS:
                zero = tl.load(zeros + group_row).to(tl.float32)
            low = step * GROUP_SIZE + tl.arange(0, HALF)[:, None]
            if HAS_REST:
                x_low = tl.load(x + column + low, mask=low < in_features, other=0.0)
                x_high = tl.load(x + column + low + HALF, mask=low + HALF < in_features, other=0.0)
            else:
                x_low = tl.load(x + column + low)
                x_high = tl.load(x + column + low + HALF)
            product = tl.dot(_widen_codes(packed & 0xF, zero, WIDE), x_low, input_precision="ieee")
            product = tl.dot(
                _widen_codes(packed >> 4, zero, WIDE), x_high, product, input_precision="ieee"
            )
            total += product * tl.load(scales + group_row).to(tl.float32)
        else:
            feature = step * GROUP_SIZE + tl.arange(0, GROUP_SIZE)
            place = values + row * stride_values + feature[None, :]
            if HAS_REST:
                inside = feature < in_features
                stored = tl.load(place, mask=inside[None, :], other=0.0)
                x_tile = tl.load(x + column + feature[:, None], mask=inside[:, None], other=0.0)
            else:
                stored = tl.load(place)
                x_tile = tl.load(x + column + feature[:, None])
            # From float32, two numbers at a time are converted.
            wide = stored.to(tl.float32).to(WIDE)
            total = tl.dot(wide, x_tile, total, input_precision="ieee")
    if not IS_INT4:
        total *= tl.load(scales + row)
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
