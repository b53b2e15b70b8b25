"""Weighted sums of neighbouring rows in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def weighted_sum(rows: Tensor, weights: Tensor | None, num_rows: int) -> Tensor:
    """See `kernels.weighted_sum.weighted_sum`."""
    parts = rows.float().unflatten(0, (-1, num_rows))
    if weights is not None:
        parts = parts * weights.float()[..., None]
    total = torch.zeros_like(parts[:, 0])
    for number in range(num_rows):
        total += parts[:, number]
    return total.to(rows.dtype)
