"""The layers of a decoder, over packed tokens [num_tokens, hidden]."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.silu_mul import silu_mul
from shared.model.linear.base import DENSE
from shared.model.linear.fused import FusedLinear

if TYPE_CHECKING:
    from torch import Tensor

    from shared.model.linear.base import LinearMethod


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension, with a weight."""

    def __init__(
        self, *, size: int, eps: float, dtype: torch.dtype, implementation: str = "torch"
    ) -> None:
        """Make the norm. implementation: of the kernel, `torch` or `triton`."""
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)
        self._normalise = partial(rms_norm, eps=eps, implementation=implementation)
        self._normalise_sum = partial(add_rms_norm, eps=eps, implementation=implementation)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return self._normalise(x, self.weight)

    def of_sum(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Return the norm of the sum, and the sum."""
        return self._normalise_sum(x, residual, self.weight)


class GatedMLP(nn.Module):
    """SwiGLU: a projection down of silu(gate) times up."""

    def __init__(
        self,
        *,
        hidden: int,
        inner: int,
        bias: bool,
        dtype: torch.dtype,
        implementation: str = "torch",
        method: LinearMethod = DENSE,
    ) -> None:
        """Make the layer. implementation: of the gate, `torch` or `triton`."""
        super().__init__()
        self._gate = partial(silu_mul, implementation=implementation)
        self.gate_up = FusedLinear(
            in_size=hidden,
            out_sizes=(inner, inner),
            bias=bias,
            dtype=dtype,
            method=method,
            is_gated=True,
        )
        self.down = FusedLinear(
            in_size=inner, out_sizes=(hidden,), bias=bias, dtype=dtype, method=method
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map [num_tokens, hidden] to the same shape."""
        gate, up = self.gate_up(x)
        out: Tensor = self.down(self._gate(gate, up))[0]
        return out
