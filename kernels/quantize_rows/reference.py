"""Quantising rows in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernels.quantize_rows.limits import LARGEST, LEAST

if TYPE_CHECKING:
    from torch import Tensor


#: The factor of a row of zeros does not exist, and that of a tiny row would be infinite.
_LEAST = 1e-30


def quantize_rows(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """See `kernels.quantize_rows.quantize_rows`."""
    largest = LARGEST[dtype]
    peak = x.float().abs().amax(dim=-1)
    # Not number / tensor: PyTorch would multiply by a rounded reciprocal.
    ratio = torch.full_like(peak, largest) / peak.clamp(min=_LEAST)
    factor = torch.where(peak > _LEAST, ratio, 0)
    scaled = x.float() * factor.unsqueeze(-1)
    if dtype == torch.int8:
        scaled = scaled.round()
    return scaled.clamp(-largest, largest).to(dtype), peak * (1 / largest)


def quantize_rows_by(x: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x [..., size] over scales [...], rounded to the nearest, ties to even, and limited."""
    scaled = x.float() / scales.unsqueeze(-1)
    if dtype == torch.int8:
        scaled = scaled.round()
    return scaled.clamp(LEAST[dtype], LARGEST[dtype]).to(dtype)


def dequantize_rows(values: Tensor, scales: Tensor) -> Tensor:
    """Return float32 [..., size]: values [..., size] times scales [...]."""
    return values.float() * scales.unsqueeze(-1)
