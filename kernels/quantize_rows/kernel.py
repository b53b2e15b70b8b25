"""Quantising rows in Triton: one program holds one row in registers, so it is read once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from kernels.quantize_rows.limits import LARGEST

if TYPE_CHECKING:
    from torch import Tensor


@triton.jit
def quantize_tile(x, largest, IS_INTEGER: tl.constexpr):
    """Return x [rows, size] scaled to magnitudes up to `largest`, and float32 scales [rows]."""
    peak = tl.max(tl.abs(x), 1)
    # The factor of a row of zeros does not exist, and that of a tiny row would be infinite.
    ratio = tl.div_rn(tl.zeros_like(peak) + largest, tl.maximum(peak, 1e-30))
    factor = tl.where(peak > 1e-30, ratio, 0.0)
    scaled = x * factor[:, None]
    return round_tile(scaled, -largest, largest, IS_INTEGER), peak * (1.0 / largest)


@triton.jit
def round_tile(scaled, least, largest, IS_INTEGER: tl.constexpr):
    """Return numbers within limits; if they are to be integers, the nearest ones."""
    if IS_INTEGER:
        # Adding 1.5 * 2**23 leaves no bits for a fraction: it rounds to the nearest, ties to even.
        scaled = (scaled + 12582912.0) - 12582912.0
    return tl.minimum(tl.maximum(scaled, least), largest)


@triton.jit
def quantize_rows_kernel(
    x,
    values,
    scales,
    size,
    stride_x,
    stride_values,
    LARGEST: tl.constexpr,
    IS_INTEGER: tl.constexpr,
    PADDED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED)[None, :]
    inside = column < size
    wide = tl.load(x + row * stride_x + column, mask=inside, other=0.0).to(tl.float32)
    rounded, scale = quantize_tile(wide, LARGEST, IS_INTEGER)
    place = values + row * stride_values + column
    tl.store(place, rounded.to(values.dtype.element_ty), mask=inside)
    tl.store(scales + row + tl.arange(0, 1), scale)


def quantize_constants(*, size: int, dtype: torch.dtype) -> tuple[dict[str, float | bool], int]:
    """Return the kernel's constants and number of warps: 16 numbers a thread, up to 16 warps."""
    padded = triton.next_power_of_2(size)
    constants = {
        "LARGEST": LARGEST[dtype],
        "IS_INTEGER": dtype == torch.int8,
        "PADDED": padded,
    }
    return constants, min(16, max(1, padded // 512))


def launch(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """See `kernels.quantize_rows.quantize_rows`."""
    size = x.shape[-1]
    rows = x.reshape(-1, size)
    values = torch.empty(rows.shape, dtype=dtype, device=x.device)
    scales = torch.empty(len(rows), dtype=torch.float32, device=x.device)
    constants, num_warps = quantize_constants(size=size, dtype=dtype)
    quantize_rows_kernel[(len(rows),)](
        rows,
        values,
        scales,
        size,
        rows.stride(0),
        values.stride(0),
        **constants,
        num_warps=num_warps,
    )
    return values.view(x.shape), scales.view(x.shape[:-1])
