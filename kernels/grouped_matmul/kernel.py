"""Products of rows with the weight of their group, in Triton.

One program computes a tile of the result: rows of one group, some output features. The grid has a
tile for the largest number that groups can have; a program finds its own in the groups' ends, which
only the device knows, or none (vLLM's fused experts divide the work alike).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.grouped_matmul.groups import RowGroups


@triton.jit
def grouped_matmul_kernel(
    x,
    weight,
    bias,  # None without one
    out,
    order,
    ends,
    num_groups,
    out_features,
    in_features,
    repeats,  # rows of the result per row of x
    stride_x,
    stride_group,
    stride_weight,
    stride_bias,  # None without a bias
    stride_out,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
    FEATURES: tl.constexpr,  # per step
    GROUPS: tl.constexpr,  # at least num_groups, a power of two
    HAS_REST: tl.constexpr,  # whether the last step has fewer features
    HAS_BIAS: tl.constexpr,
):
    tile = tl.program_id(1)
    lane = tl.arange(0, GROUPS)
    group_end = tl.load(ends + lane, mask=lane < num_groups, other=0).to(tl.int32)
    group_start = tl.load(ends + lane - 1, mask=(lane > 0) & (lane < num_groups), other=0)
    num_tiles = tl.cdiv(group_end - group_start.to(tl.int32), ROWS)
    is_before = (tl.cumsum(num_tiles, 0) <= tile) & (lane < num_groups)
    group = tl.sum(is_before.to(tl.int32), 0)
    if group >= num_groups:
        return
    end = tl.load(ends + group).to(tl.int32)
    start = tl.load(ends + group - 1, mask=group > 0, other=0).to(tl.int32)
    start += (tile - tl.sum(tl.where(is_before, num_tiles, 0), 0)) * ROWS

    place = start + tl.arange(0, ROWS)
    row = tl.load(order + place, mask=place < end, other=0)
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    feature = tl.arange(0, FEATURES)
    # Places past the group's end read row 0, and channels past the end wrap to the beginning, so
    # loads need no masks; their results are not stored.
    x_row = x + (row // repeats)[:, None] * stride_x
    group_weight = weight + group.to(tl.int64) * stride_group
    weight_row = group_weight + (channel % out_features).to(tl.int64)[None, :] * stride_weight
    total = tl.zeros([ROWS, CHANNELS], tl.float32)
    for first in range(0, in_features, FEATURES):
        at = first + feature
        if HAS_REST:
            inside = at < in_features
            x_tile = tl.load(x_row + at[None, :], mask=inside[None, :], other=0.0)
            weight_tile = tl.load(weight_row + at[:, None], mask=inside[:, None], other=0.0)
        else:
            x_tile = tl.load(x_row + at[None, :])
            weight_tile = tl.load(weight_row + at[:, None])
        total = tl.dot(x_tile, weight_tile, total, input_precision="ieee")
    if HAS_BIAS:
        own_bias = bias + group.to(tl.int64) * stride_bias + channel
        total += tl.load(own_bias, mask=channel < out_features, other=0.0).to(tl.float32)[None, :]
    tl.store(
        out + row[:, None] * stride_out + channel[None, :],
        total.to(out.dtype.element_ty),
        mask=(place < end)[:, None] & (channel < out_features)[None, :],
    )


class Tiles(NamedTuple):
    """How much one program computes at a time."""

    rows: int
    channels: int
    features: int
    num_warps: int
    num_stages: int


#: The first one that holds the rows of a group, were all groups equal, is chosen, otherwise the
#: last one.
HALF_TILES = (Tiles(16, 64, 128, 4, 4), Tiles(64, 128, 64, 4, 4))
#: Products in full float32 run on ordinary cores, out of registers.
FULL_TILES = (Tiles(16, 32, 64, 4, 2),)


def choose_tiles(*, num_rows: int, num_groups: int, element_bytes: int) -> Tiles:
    """Return tiles that fit sm_80's and sm_90's memory and registers (see `compile_gate`)."""
    choices = HALF_TILES if element_bytes == 2 else FULL_TILES
    mean = num_rows / num_groups
    return next((tiles for tiles in choices if tiles.rows >= mean), choices[-1])


def matmul_constants(
    *, tiles: Tiles, in_features: int, num_groups: int, has_bias: bool
) -> dict[str, int | bool]:
    """Return the kernel's constants."""
    return {
        "ROWS": tiles.rows,
        "CHANNELS": tiles.channels,
        "FEATURES": tiles.features,
        "GROUPS": triton.next_power_of_2(num_groups),
        "HAS_REST": in_features % tiles.features != 0,
        "HAS_BIAS": has_bias,
    }


def count_tiles(*, num_rows: int, num_groups: int, tile: int) -> int:
    """Return the largest number of tiles that groups of so many rows in all can have."""
    return num_rows // tile + min(num_rows, num_groups)


def launch(x: Tensor, weight: Tensor, groups: RowGroups, bias: Tensor | None) -> Tensor:
    """See `kernels.grouped_matmul.grouped_matmul`."""
    num_rows, (num_groups, out_features, in_features) = len(groups.order), weight.shape
    out = torch.empty((num_rows, out_features), dtype=x.dtype, device=x.device)
    if num_rows == 0:
        return out
    tiles = choose_tiles(num_rows=num_rows, num_groups=num_groups, element_bytes=x.element_size())
    num_tiles = count_tiles(num_rows=num_rows, num_groups=num_groups, tile=tiles.rows)
    grouped_matmul_kernel[(triton.cdiv(out_features, tiles.channels), num_tiles)](
        x,
        weight,
        bias,
        out,
        groups.order,
        groups.ends,
        num_groups,
        out_features,
        in_features,
        num_rows // len(x),
        x.stride(0),
        *weight.stride()[:2],
        None if bias is None else bias.stride(0),
        out.stride(0),
        **matmul_constants(
            tiles=tiles,
            in_features=in_features,
            num_groups=num_groups,
            has_bias=bias is not None,
        ),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    return out
