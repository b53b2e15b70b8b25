"""Products of rounded inputs with stored matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import linear

from kernels.quantized_matmul import quantized_matmul
from kernels.quantized_matmul.groups import can_multiply

if TYPE_CHECKING:
    from torch import Tensor

    from shared.model.linear.packed import PackedProduct
    from shared.model.matrix.inputs import InputRounding
    from shared.model.matrix.quantized import QuantizedMatrix

_MOST_BITS_OF_FOURS = 4


class RoundedProduct(nn.Module):
    """rounded(x) @ weight.T in float32, with a weight that is dense for the time of a product."""

    def __init__(self, matrix: QuantizedMatrix, inputs: InputRounding) -> None:
        super().__init__()
        self.register_buffer("codes", matrix.codes)
        self.register_buffer("scales", matrix.scales)
        self._matrix = matrix
        self._inputs = inputs

    def forward(self, x: Tensor) -> Tensor:
        """Map [num_tokens, in_features] to [num_tokens, out_features]."""
        return linear(self._inputs.apply(x), self._matrix.dense(torch.float32)).to(x.dtype)


class CodedProduct(nn.Module):
    """rounded(x) @ weight.T, both in codes of 8 bits, with scales by row or group."""

    codes: Tensor
    scales: Tensor

    def __init__(self, matrix: QuantizedMatrix, inputs: InputRounding, implementation: str) -> None:
        super().__init__()
        scales = matrix.by_rows().scales.float()
        self._group = _group_of(matrix)
        self.register_buffer("codes", matrix.codes)
        self.register_buffer("scales", scales.flatten() if self._group is None else scales)
        self._inputs = inputs
        self._implementation = implementation

    def forward(self, x: Tensor) -> Tensor:
        """Map [num_tokens, in_features] to [num_tokens, out_features]."""
        rows, row_scales = self._inputs.encode(x, self.codes.dtype)
        return quantized_matmul(
            rows,
            row_scales,
            self.codes,
            self.scales,
            x_group=self._inputs.rule.group,
            weight_group=self._group,
            out_dtype=x.dtype,
            implementation=self._implementation,
        )


class UnitsProduct(nn.Module):
    """rounded(x) @ weight.T with a packed weight: the factor of a token's numbers comes last."""

    def __init__(self, product: PackedProduct, inputs: InputRounding) -> None:
        """inputs: those that have units in the dtype of x."""
        super().__init__()
        self.product = product
        self._inputs = inputs

    def forward(self, x: Tensor) -> Tensor:
        """Map [num_tokens, in_features] to [num_tokens, out_features]."""
        numbers, unit = self._inputs.in_units(x)
        out: Tensor = self.product(numbers)
        return out if unit is None else (out * unit).to(x.dtype)


def has_codes(matrix: QuantizedMatrix, inputs: InputRounding) -> bool:
    """Return whether both sides of a product are codes of one type, and groups suit the kernel.

    Codes of 4 bits are not: they would take 8.
    """
    is_plain = all(
        each is None for each in (matrix.zeros, matrix.offsets, matrix.table, matrix.column_groups)
    )
    fits = can_multiply(inputs.rule.group, _group_of(matrix))
    is_wide = matrix.bits > _MOST_BITS_OF_FOURS
    return is_plain and is_wide and fits and inputs.has_codes(matrix.codes.dtype)


def _group_of(matrix: QuantizedMatrix) -> int | None:
    """Columns that share a scale; None: all do."""
    return None if matrix.scales.shape[1] == 1 else matrix.group
