"""The layers of a decoder, over packed tokens [num_tokens, hidden]."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import linear

from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.silu_mul import silu_mul

if TYPE_CHECKING:
    from torch import Tensor


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension, with a weight."""

    def __init__(
        self, *, size: int, eps: float, dtype: torch.dtype, implementation: str = "torch"
    ) -> None:
        """implementation: of the kernel, `torch` or `triton`."""
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)
        self._normalise = partial(rms_norm, eps=eps, implementation=implementation)
        self._normalise_sum = partial(add_rms_norm, eps=eps, implementation=implementation)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return self._normalise(x, self.weight)

    def of_sum(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """The norm of the sum, and the sum."""
        return self._normalise_sum(x, residual, self.weight)


class FusedLinear(nn.Module):
    """Several projections of the same input as one product; each is a range of its rows."""

    def __init__(
        self, *, in_size: int, out_sizes: tuple[int, ...], bias: bool, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.out_sizes = out_sizes
        rows = sum(out_sizes)
        self.weight = nn.Parameter(torch.empty(rows, in_size, dtype=dtype), requires_grad=False)
        self.bias = (
            nn.Parameter(torch.empty(rows, dtype=dtype), requires_grad=False) if bias else None
        )
        #: What computes instead of `weight`, which is empty then.
        self.product: nn.Module | None = None

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """One output per projection."""
        fused = linear(x, self.weight, self.bias) if self.product is None else self._narrow(x)
        parts: tuple[Tensor, ...] = torch.split(fused, list(self.out_sizes), dim=-1)
        return parts

    def replace_weight(self, product: nn.Module) -> None:
        """Have `product` multiply x with the weight from now on, and give the weight back."""
        self.product = product
        nothing = torch.empty(0, dtype=self.weight.dtype, device=self.weight.device)
        self.weight = nn.Parameter(nothing, requires_grad=False)

    def _narrow(self, x: Tensor) -> Tensor:
        assert self.product is not None
        fused: Tensor = self.product(x)
        return fused if self.bias is None else fused + self.bias

    def part(self, index: int) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of one projection, as views."""
        start = sum(self.out_sizes[:index])
        rows = slice(start, start + self.out_sizes[index])
        return self.weight[rows], None if self.bias is None else self.bias[rows]


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
    ) -> None:
        """implementation: of the gate, `torch` or `triton`."""
        super().__init__()
        self._gate = partial(silu_mul, implementation=implementation)
        self.gate_up = FusedLinear(in_size=hidden, out_sizes=(inner, inner), bias=bias, dtype=dtype)
        self.down = FusedLinear(in_size=inner, out_sizes=(hidden,), bias=bias, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """[num_tokens, hidden] to the same."""
        gate, up = self.gate_up(x)
        out: Tensor = self.down(self._gate(gate, up))[0]
        return out
