"""Linears of one shape as one product: each row is multiplied by the weight of one of them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from kernels.grouped_matmul import grouped_matmul

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from kernels.grouped_matmul import RowGroups
    from shared.model.linear.fused import FusedLinear


class StackedLinears:
    """The weights lie behind each other, and each linear keeps its own range of them."""

    def __init__(self, linears: Sequence[FusedLinear], implementation: str) -> None:
        """Give linears that are not filled yet their memory; they keep dense weights."""
        first = linears[0]
        self._weight = first.weight.new_empty(len(linears), *first.weight.shape)
        self._bias: Tensor | None = None
        if first.bias is not None:
            self._bias = first.bias.new_empty(len(linears), *first.bias.shape)
        for number, linear in enumerate(linears):
            bias = None if self._bias is None else self._bias[number]
            linear.keep_in(self._weight[number], bias)
        self._sizes = list(first.out_sizes)
        self._multiply = partial(grouped_matmul, implementation=implementation)

    def __call__(self, x: Tensor, groups: RowGroups) -> tuple[Tensor, ...]:
        """Return one output per projection, [num_rows, size]; x: see `grouped_matmul`."""
        fused = self._multiply(x, self._weight, groups, bias=self._bias)
        parts: tuple[Tensor, ...] = torch.split(fused, self._sizes, dim=-1)
        return parts
