"""Products with matrices as a checkpoint stores them.

Where inputs are rounded, PyTorch multiplies what the format rounds them to, with scales in float32.
Triton's kernel of 8 bits does so if both sides are codes of one type with a scale for each row.
Triton's kernel of 4 bits multiplies matrices in groups of 128 columns whose inputs are not rounded.
All others become dense.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import linear

from kernels.quantized_matmul import quantized_matmul
from kernels.weight_only_matmul.packing import pack_codes
from kernels.weight_only_matmul.weight import GROUP_SIZE
from shared.model.linear.packed import PackedProduct, make_workspaces

if TYPE_CHECKING:
    from torch import Tensor

    from shared.model.linear.base import Product
    from shared.model.linear.fused import FusedLinear
    from shared.model.linear.inputs import InputRounding
    from shared.model.linear.quantized import QuantizedMatrix


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
    """rounded(x) @ weight.T, both in codes of 8 bits, with a scale for each row."""

    codes: Tensor
    scales: Tensor

    def __init__(self, matrix: QuantizedMatrix, inputs: InputRounding, implementation: str) -> None:
        super().__init__()
        self.register_buffer("codes", matrix.codes)
        self.register_buffer("scales", matrix.by_rows().scales.float().flatten())
        self._inputs = inputs
        self._implementation = implementation

    def forward(self, x: Tensor) -> Tensor:
        """Map [num_tokens, in_features] to [num_tokens, out_features]."""
        rows, row_scales = self._inputs.encode(x, self.codes.dtype)
        how = self._implementation
        return quantized_matmul(
            rows, row_scales, self.codes, self.scales, out_dtype=x.dtype, implementation=how
        )


class AsStored:
    """Keeps matrices of a checkpoint as they are stored, where a product with them is there."""

    keeps_parts = True
    keeps_head = False

    def __init__(self, device: torch.device, *, implementation: str) -> None:
        """implementation: of the kernels, `torch` or `triton`."""
        self._device = device
        self._implementation = implementation
        self._workspaces = make_workspaces()

    def room(self, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        """See `LinearMethod.room`."""
        return torch.empty(shape, dtype=dtype, device="cpu")

    def finish(self, linear: FusedLinear) -> Product | None:
        """See `LinearMethod.finish`."""
        return None

    def keeps(self, matrix: QuantizedMatrix) -> bool:
        """See `LinearMethod.keeps`."""
        if matrix.inputs is not None:
            return True
        is_int4 = matrix.bits == 4 and matrix.codes.dtype == torch.int8
        has_groups = matrix.group == GROUP_SIZE and matrix.column_groups is None
        is_known = is_int4 and has_groups and matrix.offsets is None
        return self._implementation == "triton" and is_known

    def keep(self, matrix: QuantizedMatrix, linear: FusedLinear) -> Product:
        """See `LinearMethod.keep`."""
        own, how = matrix.to(self._device), self._implementation
        if own.inputs is None:
            rows = own.by_rows()
            packed = pack_codes(rows.codes, rows.scales, rows.zeros)
            return PackedProduct(packed, self._workspaces, how)
        if how == "triton" and has_codes(own, own.inputs):
            return CodedProduct(own, own.inputs, how)
        return RoundedProduct(own, own.inputs)


def has_codes(matrix: QuantizedMatrix, inputs: InputRounding) -> bool:
    """Return whether both sides of a product are codes of one type, with a scale for each row."""
    is_plain = matrix.zeros is None and matrix.offsets is None
    return matrix.scales.shape[1] == 1 and is_plain and inputs.has_codes(matrix.codes.dtype)
