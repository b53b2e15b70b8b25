"""Products of matrices in 8 bits, in Triton.

One program computes a tile of the result. Neighbouring programs share rows of x and of the weight,
so that both are read from the cache (order of programs: Triton's matmul tutorial).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl

from kernels.device import current_arch
from kernels.quantized_matmul.groups import common_group
from kernels.quantized_matmul.scaled_mm import is_better, scaled_mm

if TYPE_CHECKING:
    from torch import Tensor

#: Tiles of tokens that are computed before the next tile of channels.
_GROUP = 8


@triton.jit
def quantized_matmul_kernel(
    x,
    x_scales,
    weight,
    weight_scales,
    out,
    num_tokens,
    out_features,
    in_features,
    stride_x,
    stride_x_scales,
    stride_weight,
    stride_weight_scales,
    stride_out,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
    FEATURES: tl.constexpr,  # per step
    GROUP: tl.constexpr,
    X_GROUP: tl.constexpr,  # features that share a scale; 0: all of a row
    WEIGHT_GROUP: tl.constexpr,
    IS_INTEGER: tl.constexpr,
    HAS_REST: tl.constexpr,  # whether the last step has fewer features
):
    program = tl.program_id(0)
    num_token_tiles = tl.cdiv(num_tokens, TOKENS)
    num_channel_tiles = tl.cdiv(out_features, CHANNELS)
    first_tile = program // (GROUP * num_channel_tiles) * GROUP
    group = tl.minimum(num_token_tiles - first_tile, GROUP)
    within = program % (GROUP * num_channel_tiles)
    token = (first_tile + within % group) * TOKENS + tl.arange(0, TOKENS)
    channel = within // group * CHANNELS + tl.arange(0, CHANNELS)
    feature = tl.arange(0, FEATURES)
    # Rows past the end wrap to the beginning, so loads need no masks; their results are not stored.
    x_row = x + (token % num_tokens).to(tl.int64)[:, None] * stride_x
    weight_row = weight + (channel % out_features).to(tl.int64)[None, :] * stride_weight
    x_scale = x_scales + token * stride_x_scales
    weight_scale = weight_scales + channel * stride_weight_scales
    has_token, has_channel = token < num_tokens, channel < out_features
    BY_STEP: tl.constexpr = X_GROUP + WEIGHT_GROUP > 0
    SUM: tl.constexpr = tl.int32 if IS_INTEGER else tl.float32
    total = tl.zeros([TOKENS, CHANNELS], tl.float32 if BY_STEP else SUM)
    for start in range(0, in_features, FEATURES):
        at = start + feature
        if HAS_REST:
            x_tile = tl.load(x_row + at[None, :], mask=(at < in_features)[None, :], other=0.0)
            weight_tile = tl.load(
                weight_row + at[:, None], mask=(at < in_features)[:, None], other=0.0
            )
        else:
            x_tile = tl.load(x_row + at[None, :])
            weight_tile = tl.load(weight_row + at[:, None])
        product = tl.zeros([TOKENS, CHANNELS], SUM) if BY_STEP else total
        if IS_INTEGER:
            product = tl.dot(x_tile, weight_tile, product, out_dtype=tl.int32)
        else:
            # Hopper's tensor cores add float8 products with few bits, so their sums are short.
            product = tl.dot(x_tile, weight_tile, product, max_num_imprecise_acc=FEATURES)
        if BY_STEP:
            # The scale of a whole row is one number of it, too.
            x_group = 0 if X_GROUP == 0 else start // X_GROUP
            weight_group = 0 if WEIGHT_GROUP == 0 else start // WEIGHT_GROUP
            of_x = tl.load(x_scale + x_group, mask=has_token, other=0.0)[:, None]
            of_weight = tl.load(weight_scale + weight_group, mask=has_channel, other=0.0)[None, :]
            total += product.to(tl.float32) * (of_x * of_weight)
        else:
            total = product
    result = total.to(tl.float32)
    if not BY_STEP:
        result *= tl.load(x_scale, mask=has_token, other=0.0)[:, None]
        result *= tl.load(weight_scale, mask=has_channel, other=0.0)[None, :]
    tl.store(
        out + token.to(tl.int64)[:, None] * stride_out + channel[None, :],
        result.to(out.dtype.element_ty),
        mask=has_token[:, None] & has_channel[None, :],
    )


class Tiles(NamedTuple):
    """How much one program computes at a time."""

    tokens: int
    channels: int
    features: int
    num_warps: int
    num_stages: int


#: The first one that holds all tokens is chosen, otherwise the last one.
TILES = (
    Tiles(16, 64, 256, 4, 4),
    Tiles(32, 64, 256, 4, 4),
    Tiles(64, 128, 128, 4, 4),
    Tiles(128, 128, 128, 8, 4),
)
#: For many tokens, on Hopper, whose tensor cores read their operands from shared memory: as wide
#: as registers allow, since a product of twice the tokens reads each weight half as often. Two
#: sums, of a group and of all, do not fit.
WIDE_TILES = Tiles(256, 128, 128, 8, 3)
#: From this number of tokens on, there are enough wide tiles for all multiprocessors.
_MANY_TOKENS = 1024


def choose_tiles(num_tokens: int, *, arch: int, has_groups: bool) -> Tiles:
    """Return tiles that fit sm_80's and sm_90's memory and registers (see `compile_gate`)."""
    if arch >= 90 and num_tokens >= _MANY_TOKENS and not has_groups:
        return WIDE_TILES
    return next((tiles for tiles in TILES if tiles.tokens >= num_tokens), TILES[-1])


def matmul_constants(
    *,
    tiles: Tiles,
    in_features: int,
    dtype: torch.dtype,
    x_group: int | None = None,
    weight_group: int | None = None,
) -> dict[str, int | bool]:
    """Return the kernel's constants. A step has no more features than the groups share."""
    features = tiles.features
    if common_group(x_group, weight_group):
        features = min(features, common_group(x_group, weight_group))
    return {
        "TOKENS": tiles.tokens,
        "CHANNELS": tiles.channels,
        "FEATURES": features,
        "GROUP": _GROUP,
        "X_GROUP": x_group or 0,
        "WEIGHT_GROUP": weight_group or 0,
        "IS_INTEGER": dtype == torch.int8,
        "HAS_REST": in_features % features != 0,
    }


def launch(
    x: Tensor,
    x_scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    *,
    x_group: int | None,
    weight_group: int | None,
    out_dtype: torch.dtype,
) -> Tensor:
    """See `kernels.quantized_matmul.quantized_matmul`. Rows must be contiguous."""
    num_tokens, in_features = x.shape
    out_features, arch = len(weight), current_arch(x.device)
    has_groups = x_group is not None or weight_group is not None
    if not has_groups and is_better(x, weight, out_dtype, arch=arch):
        return scaled_mm(x, x_scales, weight, weight_scales, out_dtype)
    out = torch.empty((num_tokens, out_features), dtype=out_dtype, device=x.device)
    tiles = choose_tiles(num_tokens, arch=arch, has_groups=has_groups)
    grid = triton.cdiv(num_tokens, tiles.tokens) * triton.cdiv(out_features, tiles.channels)
    quantized_matmul_kernel[(grid,)](
        x,
        x_scales,
        weight,
        weight_scales,
        out,
        num_tokens,
        out_features,
        in_features,
        x.stride(0),
        x_scales.stride(0),
        weight.stride(0),
        weight_scales.stride(0),
        out.stride(0),
        **matmul_constants(
            tiles=tiles,
            in_features=in_features,
            dtype=x.dtype,
            x_group=x_group,
            weight_group=weight_group,
        ),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    return out
