"""Products of matrices in 8 bits, in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def quantized_matmul(
    x: Tensor, x_scales: Tensor, weight: Tensor, weight_scales: Tensor, out_dtype: torch.dtype
) -> Tensor:
    """See `kernels.quantized_matmul.quantized_matmul`."""
    # Sums of int8 are exact: they may need more than the 24 bits of float32.
    wide = torch.float64 if x.dtype == torch.int8 else torch.float32
    product = (x.to(wide) @ weight.to(wide).T).float()
    return (product * x_scales[:, None] * weight_scales).to(out_dtype)
