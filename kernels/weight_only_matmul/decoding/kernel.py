"""Codes of few bits as numbers, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def weight_tile(
    codes,  # [CHANNELS, WIDTH]
    scales,
    zeros,
    offsets,
    table,
    first,  # input feature
    row,  # int64 [CHANNELS, 1]
    in_features,
    out_features,
    WIDE: tl.constexpr,
    BITS: tl.constexpr,
    MANTISSA: tl.constexpr,
    MIDDLE: tl.constexpr,
    GROUP: tl.constexpr,
    BY_COLUMN: tl.constexpr,
):
    """Return the weights of the codes in the type WIDE, times their scales if BY_COLUMN."""
    if BY_COLUMN:
        weight = numbers_of(codes, table, BITS, MANTISSA)
        if zeros is not None:
            weight -= _by_column(zeros, codes, first, row, in_features, out_features, GROUP)
        elif MIDDLE > 0:
            weight -= MIDDLE
        weight *= _by_column(scales, codes, first, row, in_features, out_features, GROUP)
        if offsets is not None:
            weight -= _by_column(offsets, codes, first, row, in_features, out_features, GROUP)
        # From float32, two numbers at a time are converted.
        return weight.to(WIDE)
    zero = tl.full([codes.shape[0], 1], MIDDLE, tl.float32)
    if zeros is not None:
        group = 0 if GROUP == 0 else first // GROUP
        zero = tl.load(zeros + group * out_features + row).to(tl.float32)
    if BITS == 4 and MANTISSA == 0 and table is None:
        return _subtract(codes, zero, WIDE)
    weight = numbers_of(codes, table, BITS, MANTISSA)
    if zeros is not None or MIDDLE > 0:
        weight -= zero
    return weight.to(WIDE)


@triton.jit
def numbers_of(codes, table, BITS: tl.constexpr, MANTISSA: tl.constexpr):
    """Return float32 numbers of codes. Those of floats must be finite."""
    if table is not None:
        return tl.load(table + codes.to(tl.int32))
    if MANTISSA == 0:
        return codes.to(tl.float32)
    # Shifted to the place of float32's bits, a float is right but for its exponent's bias, and that
    # of small numbers, too: a product with a power of two is exact.
    SIGN: tl.constexpr = 1 << (BITS - 1)
    BIAS: tl.constexpr = (1 << (BITS - 2 - MANTISSA)) - 1
    wide = codes.to(tl.uint32)
    bits = ((wide & (SIGN - 1)) << (23 - MANTISSA)) | ((wide & SIGN) << (32 - BITS))
    return bits.to(tl.float32, bitcast=True) * (2.0 ** (127 - BIAS))


@triton.jit
def as_float(scales):
    """Return float32 scales; integers are exponents."""
    if scales.dtype == tl.uint8:
        return (scales.to(tl.uint32) << 23).to(tl.float32, bitcast=True)
    return scales.to(tl.float32)


@triton.jit
def _subtract(codes, zeros, WIDE: tl.constexpr):
    """Return codes of 4 bits minus their zeros [rows, 1] in the type WIDE, exactly.

    They are widened without a conversion: as the lowest bits of 128 in bfloat16, or of 1024 in
    float16, they add their value to it (Y. J. Kim et al., "Who says elephants can't run", 2022).
    """
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
def _by_column(of_groups, codes, first, row, in_features, out_features, GROUP: tl.constexpr):
    """Return float32 numbers of groups, [groups, out_features], for each of the codes."""
    CHANNELS: tl.constexpr = codes.shape[0]
    WIDTH: tl.constexpr = codes.shape[1]
    if GROUP == 0:
        return as_float(tl.load(of_groups + row))
    last = tl.cdiv(in_features, GROUP) - 1
    if WIDTH % GROUP == 0:
        group = first // GROUP + tl.arange(0, WIDTH // GROUP)
        own = tl.load(of_groups + tl.minimum(group, last)[None, :] * out_features + row)
        spread = tl.broadcast_to(as_float(own)[:, :, None], [CHANNELS, WIDTH // GROUP, GROUP])
        return tl.reshape(spread, [CHANNELS, WIDTH])
    group = (first + tl.arange(0, WIDTH)) // GROUP
    return as_float(tl.load(of_groups + tl.minimum(group, last)[None, :] * out_features + row))
