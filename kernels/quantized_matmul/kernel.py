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
    stride_weight,
    stride_out,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
    FEATURES: tl.constexpr,  # per step
    GROUP: tl.constexpr,
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
    total = tl.zeros([TOKENS, CHANNELS], tl.int32 if IS_INTEGER else tl.float32)
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
        if IS_INTEGER:
            total = tl.dot(x_tile, weight_tile, total, out_dtype=tl.int32)
        else:
            # Hopper's tensor cores add float8 products with few bits, so their sums are short.
            total = tl.dot(x_tile, weight_tile, total, max_num_imprecise_acc=FEATURES)
    scale = tl.load(x_scales + token, mask=token < num_tokens, other=0.0)[:, None]
    result = total.to(tl.float32) * scale
    result *= tl.load(weight_scales + channel, mask=channel < out_features, other=0.0)[None, :]
    tl.store(
        out + token.to(tl.int64)[:, None] * stride_out + channel[None, :],
        result.to(out.dtype.element_ty),
        mask=(token < num_tokens)[:, None] & (channel < out_features)[None, :],
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
#: as registers allow, since a product of twice the tokens reads each weight half as often.
WIDE_TILES = Tiles(256, 128, 128, 8, 3)
#: From this number of tokens on, there are enough wide tiles for all multiprocessors.
_MANY_TOKENS = 1024


def choose_tiles(num_tokens: int, *, arch: int) -> Tiles:
    """Return tiles that fit sm_80's and sm_90's memory and registers (see `compile_gate`)."""
    if arch >= 90 and num_tokens >= _MANY_TOKENS:
        return WIDE_TILES
    return next((tiles for tiles in TILES if tiles.tokens >= num_tokens), TILES[-1])


def matmul_constants(
    *, tiles: Tiles, in_features: int, dtype: torch.dtype
) -> dict[str, int | bool]:
    """Return the kernel's constants."""
    return {
        "TOKENS": tiles.tokens,
        "CHANNELS": tiles.channels,
        "FEATURES": tiles.features,
        "GROUP": _GROUP,
        "IS_INTEGER": dtype == torch.int8,
        "HAS_REST": in_features % tiles.features != 0,
    }


def launch(
    x: Tensor, x_scales: Tensor, weight: Tensor, weight_scales: Tensor, out_dtype: torch.dtype
) -> Tensor:
    """See `kernels.quantized_matmul.quantized_matmul`. Rows must be contiguous."""
    num_tokens, in_features = x.shape
    out_features = len(weight)
    out = torch.empty((num_tokens, out_features), dtype=out_dtype, device=x.device)
    tiles = choose_tiles(num_tokens, arch=current_arch(x.device))
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
        weight.stride(0),
        out.stride(0),
        **matmul_constants(tiles=tiles, in_features=in_features, dtype=x.dtype),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    return out
