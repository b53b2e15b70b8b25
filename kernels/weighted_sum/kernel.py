"""Weighted sums of neighbouring rows in Triton: one program computes part of one sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

#: Numbers that one program computes: 16 bytes of each row a thread in half precision.
COLUMNS = 1024
NUM_WARPS = 4


@triton.jit
def weighted_sum_kernel(
    rows,
    weights,  # None: all 1
    out,
    size,
    num_rows,
    HAS_WEIGHTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < size
    total = tl.zeros([COLUMNS], tl.float32)
    for number in range(num_rows):
        row = token * num_rows + number
        part = tl.load(rows + row * size + column, mask=inside, other=0.0).to(tl.float32)
        if HAS_WEIGHTS:
            part *= tl.load(weights + row).to(tl.float32)
        total += part
    tl.store(out + token * size + column, total.to(out.dtype.element_ty), mask=inside)


def launch(rows: Tensor, weights: Tensor | None, num_rows: int) -> Tensor:
    """See `kernels.weighted_sum.weighted_sum`."""
    num_tokens, size = len(rows) // num_rows, rows.shape[1]
    out = torch.empty((num_tokens, size), dtype=rows.dtype, device=rows.device)
    if num_tokens == 0:
        return out
    weighted_sum_kernel[(num_tokens, triton.cdiv(size, COLUMNS))](
        rows,
        weights,
        out,
        size,
        num_rows,
        HAS_WEIGHTS=weights is not None,
        COLUMNS=COLUMNS,
        num_warps=NUM_WARPS,
    )
    return out
