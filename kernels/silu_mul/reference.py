"""Gated SiLU in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn.functional import silu

if TYPE_CHECKING:
    from torch import Tensor


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """See `kernels.silu_mul.silu_mul`."""
    return silu(gate) * up
