"""Divides products with packed weights among programs, and launches them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton

from kernels.weight_only_matmul.kernel import weight_only_matmul_kernel
from kernels.weight_only_matmul.weight import STEP

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.paged_attention.workspace import Workspace
    from kernels.weight_only_matmul.weight import PackedWeight

#: Programs per multiprocessor, so that enough loads are in flight.
_PROGRAMS_PER_PROCESSOR = 4
#: Least steps of a part: writing and adding up its partial results costs about one step.
_LEAST_STEPS = 4


class Tiles(NamedTuple):
    """How much one program computes at a time."""

    tokens: int
    channels: int
    num_warps: int
    num_stages: int


#: The first one that holds all tokens is chosen, otherwise the last one.
HALF_TILES = (Tiles(16, 64, 4, 4), Tiles(32, 64, 4, 4), Tiles(64, 64, 4, 3))
#: Products in full float32 run on ordinary cores, out of registers.
FULL_TILES = (Tiles(16, 32, 4, 2),)


def choose_tiles(*, num_tokens: int, element_bytes: int) -> Tiles:
    """Return tiles that fit sm_80's and sm_90's memory and registers (see `compile_gate`)."""
    choices = HALF_TILES if element_bytes == 2 else FULL_TILES
    return next((tiles for tiles in choices if tiles.tokens >= num_tokens), choices[-1])


def count_parts(*, num_tiles: int, num_steps: int, num_processors: int) -> int:
    """Return the number of parts into which the input features are divided."""
    wanted = -(-_PROGRAMS_PER_PROCESSOR * num_processors // num_tiles)
    steps_per_part = max(_LEAST_STEPS, num_steps // wanted)
    return -(-num_steps // steps_per_part)


def matmul_constants(*, tiles: Tiles, weight: PackedWeight) -> dict[str, int | bool]:
    """Return the kernel's constants."""
    group = 0 if weight.group >= weight.in_features else weight.group
    return {
        "CHANNELS": tiles.channels,
        "TOKENS": tiles.tokens,
        "STEP": STEP,
        "BITS": weight.bits,
        "MANTISSA": weight.mantissa,
        "MIDDLE": weight.middle,
        "GROUP": group,
        "BY_COLUMN": weight.offsets is not None or group % STEP != 0,
        "HAS_REST": weight.in_features % STEP != 0,
    }


def launch(x: Tensor, weight: PackedWeight, workspace: Workspace) -> Tensor:
    """See `kernels.weight_only_matmul.weight_only_matmul`. Rows of x must be contiguous."""
    num_tokens, in_features = x.shape
    out_features = weight.out_features
    tiles = choose_tiles(num_tokens=num_tokens, element_bytes=x.element_size())
    channel_tiles = triton.cdiv(out_features, tiles.channels)
    token_tiles = triton.cdiv(num_tokens, tiles.tokens)
    num_tiles, num_steps = channel_tiles * token_tiles, triton.cdiv(in_features, STEP)
    num_parts = count_parts(
        num_tiles=num_tiles,
        num_steps=num_steps,
        num_processors=workspace.count_processors(x.device),
    )
    partials = workspace.take(
        (num_parts * num_tiles, tiles.channels * tiles.tokens), torch.float32, x.device
    )
    out = torch.empty((num_tokens, out_features), dtype=x.dtype, device=x.device)
    # Triton has no floats of 8 bits for sm_80: the kernel takes their bits.
    values = weight.values.view(torch.uint8) if weight.mantissa else weight.values
    weight_only_matmul_kernel[(channel_tiles, num_parts, token_tiles)](
        x,
        values,
        weight.scales,
        weight.zeros,
        weight.offsets,
        weight.table,
        out,
        partials,
        workspace.counters(num_tiles, x.device),
        num_tokens,
        out_features,
        in_features,
        triton.cdiv(num_steps, num_parts),
        x.stride(0),
        out.stride(0),
        **matmul_constants(tiles=tiles, weight=weight),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    return out
