"""PyTorch's product of float8 matrices with scales by row (cuBLAS, CUTLASS), and when it is taken.

It keeps tensor cores busier than our kernel, which has no warps that only load. It has not been
measured on a GPU beside ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

#: CUDA's first architecture with float8.
_LEAST_ARCH = 89
#: Below, reading the weight bounds the speed.
_LEAST_TOKENS = 64
#: Sizes and strides must be multiples of it: one load of 16 bytes.
_PIECE = 16


def is_better(x: Tensor, weight: Tensor, out_dtype: torch.dtype, *, arch: int) -> bool:
    """Return whether PyTorch multiplies x by weight with a scale for each row of both.

    arch: ten times the compute capability. Scales for each row ask for results in bfloat16.
    """
    is_float8 = x.dtype == weight.dtype == torch.float8_e4m3fn
    is_fit = out_dtype == torch.bfloat16 and _has_whole_pieces(x) and _has_whole_pieces(weight)
    is_large = len(x) >= _LEAST_TOKENS
    return arch >= _LEAST_ARCH and is_float8 and is_large and is_fit and len(weight) % _PIECE == 0


def scaled_mm(
    x: Tensor, x_scales: Tensor, weight: Tensor, weight_scales: Tensor, out_dtype: torch.dtype
) -> Tensor:
    """See `kernels.quantized_matmul.quantized_matmul`, without groups."""
    # Sums of few bits (`use_fast_accum`) would be less exact than ours.
    return torch._scaled_mm(
        x,
        weight.T,
        scale_a=x_scales.unsqueeze(1).contiguous(),
        scale_b=weight_scales.unsqueeze(0).contiguous(),
        out_dtype=out_dtype,
        use_fast_accum=False,
    )


def _has_whole_pieces(matrix: Tensor) -> bool:
    """Whether rows are contiguous, and each consists of whole pieces and begins with one."""
    stride, between = matrix.stride()
    is_whole = matrix.shape[1] % _PIECE == stride % _PIECE == 0
    return between == 1 and stride >= matrix.shape[1] and is_whole
