"""RMS norm in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Normalise the last dimension in float32; the weight multiplies what was rounded to x's type.

    That order is transformers', and differs from `torch.rms_norm` in half precision.
    """
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)
