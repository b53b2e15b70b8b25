"""Several projections of the same input as one product."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import linear

from shared.model.linear.base import DENSE

if TYPE_CHECKING:
    from torch import Tensor

    from shared.model.linear.base import LinearMethod, Product


class FusedLinear(nn.Module):
    """Each projection is a range of the weight's rows.

    The weight is allocated at once, or at the first `part` if a method will convert it.
    """

    def __init__(
        self,
        *,
        in_size: int,
        out_sizes: tuple[int, ...],
        bias: bool,
        dtype: torch.dtype,
        method: LinearMethod = DENSE,
        is_gated: bool = False,
    ) -> None:
        """Make the linear.

        `is_gated`: of two projections one is the gate of the other, by element.
        """
        super().__init__()
        self.in_size = in_size
        self.out_sizes = out_sizes
        self.is_gated = is_gated
        rows = sum(out_sizes)
        device = None if method is DENSE else "meta"
        weight = torch.empty(rows, in_size, dtype=dtype, device=device)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = (
            nn.Parameter(torch.empty(rows, dtype=dtype), requires_grad=False) if bias else None
        )
        self._method = method
        #: Number of tensors of a checkpoint that are still missing.
        self._num_missing = len(out_sizes) * (2 if bias else 1)
        #: The product used instead of `weight`, which is empty then.
        self.product: Product | None = None

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return one output per projection."""
        fused = linear(x, self.weight, self.bias) if self.product is None else self._narrow(x)
        parts: tuple[Tensor, ...] = torch.split(fused, list(self.out_sizes), dim=-1)
        return parts

    def part(self, index: int | None) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of one projection, or of all, as views.

        Not once a method has taken the weight.
        """
        if self.weight.is_meta and self._method is not DENSE:
            weight = torch.empty(self.weight.shape, dtype=self.weight.dtype, device="cpu")
            self.weight = nn.Parameter(weight, requires_grad=False)
        if index is None:
            return self.weight, self.bias
        start = sum(self.out_sizes[:index])
        rows = slice(start, start + self.out_sizes[index])
        return self.weight[rows], None if self.bias is None else self.bias[rows]

    def keep_in(self, weight: Tensor, bias: Tensor | None) -> None:
        """Keep weight and bias, which are not filled yet, in this memory."""
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def fill(self, kind: str, values: Tensor) -> None:
        """Give all rows of `weight` or `bias` their values."""
        weight, bias = self.part(None)
        target = weight if kind == "weight" else bias
        assert target is not None
        target.copy_(values)
        self.filled(None)

    def filled(self, index: int | None) -> None:
        """What `part` returned has its values. With the last one the method takes the weight."""
        self._num_missing -= len(self.out_sizes) if index is None else 1
        if self._num_missing == 0:
            self.finish(self._method)

    @torch.inference_mode()
    def finish(self, method: LinearMethod) -> None:
        """Let `method` convert the complete weight."""
        self.product = method.finish(self)
        if self.product is not None:
            nothing = torch.empty(0, dtype=self.weight.dtype, device=self.weight.device)
            self.weight = nn.Parameter(nothing, requires_grad=False)

    def _narrow(self, x: Tensor) -> Tensor:
        assert self.product is not None
        fused = self.product(x)
        return fused if self.bias is None else fused + self.bias
