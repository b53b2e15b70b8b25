"""Products of matrices in 8 bits, in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def quantized_matmul(
    x: Tensor,
    x_scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    *,
    x_group: int | None,
    weight_group: int | None,
    out_dtype: torch.dtype,
) -> Tensor:
    """See `kernels.quantized_matmul.quantized_matmul`."""
    # Sums of int8 are exact: they may need more than the 24 bits of float32.
    wide = torch.float64 if x.dtype == torch.int8 else torch.float32
    if x_group is None and weight_group is None:
        product = (x.to(wide) @ weight.to(wide).T).float()
        return (product * x_scales[:, None] * weight_scales).to(out_dtype)
    rows, columns = (
        _scaled(codes.to(wide), scales, group)
        for codes, scales, group in ((x, x_scales, x_group), (weight, weight_scales, weight_group))
    )
    return (rows @ columns.T).to(out_dtype)


def _scaled(codes: Tensor, scales: Tensor, group: int | None) -> Tensor:
    if group is None:
        return codes * scales[:, None]
    return codes * scales.repeat_interleave(group, dim=1)[:, : codes.shape[1]]
