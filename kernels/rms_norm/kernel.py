"""RMS norm in Triton: one program holds one row in registers, so it is read once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor


@triton.jit
def rms_norm_kernel(
    x,
    residual,
    weight,
    out,
    total,
    eps,
    size,
    stride_x,
    stride_residual,
    stride_out,
    stride_total,
    PADDED: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED)
    inside = column < size
    values = tl.load(x + row * stride_x + column, mask=inside, other=0.0)
    if HAS_RESIDUAL:
        before = tl.load(residual + row * stride_residual + column, mask=inside, other=0.0)
        values = (before.to(tl.float32) + values.to(tl.float32)).to(x.dtype.element_ty)
        tl.store(total + row * stride_total + column, values, mask=inside)
    wide = values.to(tl.float32)
    normed = wide * tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)
    # Rounded before the weight multiplies, as the reference does.
    normed = normed.to(x.dtype.element_ty).to(tl.float32)
    normed = normed * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * stride_out + column, normed.to(out.dtype.element_ty), mask=inside)


def norm_constants(*, size: int, has_residual: bool) -> tuple[dict[str, int | bool], int]:
    """Return the kernel's constants and number of warps: about 32 bytes a thread at a time."""
    padded = triton.next_power_of_2(size)
    return {"PADDED": padded, "HAS_RESIDUAL": has_residual}, min(16, max(1, padded // 512))


def launch(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See `kernels.rms_norm.add_rms_norm`; without a residual the sum is x."""
    size = x.shape[-1]
    rows = x.reshape(-1, size)
    before = rows if residual is None else residual.reshape(-1, size)
    out = torch.empty_like(rows, memory_format=torch.contiguous_format)
    total = rows if residual is None else torch.empty_like(out)
    constants, num_warps = norm_constants(size=size, has_residual=residual is not None)
    rms_norm_kernel[(len(rows),)](
        rows,
        before,
        weight,
        out,
        total,
        eps,
        size,
        rows.stride(0),
        before.stride(0),
        out.stride(0),
        total.stride(0),
        **constants,
        num_warps=num_warps,
    )
    return out.view(x.shape), total.view(x.shape)
