"""The form in which PyTorch and Triton keep matrices as a checkpoint stores them.

PyTorch multiplies what a format rounds inputs to, with scales in float32, and makes all other
matrices dense. Triton multiplies codes: of 8 bits on both sides, if they are of one type; otherwise
the numbers that inputs are rounded to, if x's dtype holds them. What is left is PyTorch's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernels.device import multiplies_float8
from kernels.weight_only_matmul.packing import pack_codes
from shared.model.linear.packed import PackedProduct, make_workspaces
from shared.model.linear.rounded import CodedProduct, RoundedProduct, UnitsProduct, has_codes
from shared.model.matrix.blocks import BlockMatrix, quantized
from shared.model.matrix.ordering import has_even_groups, in_groups

if TYPE_CHECKING:
    from torch import Tensor

    from shared.model.linear.base import Product
    from shared.model.linear.fused import FusedLinear
    from shared.model.matrix.blocks import AnyMatrix
    from shared.model.matrix.inputs import InputRounding
    from shared.model.matrix.quantized import QuantizedMatrix


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

    def keeps(self, matrix: AnyMatrix) -> bool:
        """See `LinearMethod.keeps`."""
        if matrix.inputs is not None:
            return True
        if self._implementation != "triton":
            return False
        if isinstance(matrix, BlockMatrix):
            return True
        return has_even_groups(matrix) and not matrix.has_float_zeros

    def keep(self, matrix: AnyMatrix, linear: FusedLinear) -> Product:
        """See `LinearMethod.keep`."""
        own = quantized(matrix).to(self._device)
        if own.inputs is None:
            return self._packed(own)
        if self._implementation == "triton":
            return self._by_triton(own, own.inputs, linear.weight.dtype)
        return RoundedProduct(own, own.inputs)

    def _by_triton(
        self, matrix: QuantizedMatrix, inputs: InputRounding, dtype: torch.dtype
    ) -> Product:
        is_float8 = matrix.codes.dtype == torch.float8_e4m3fn
        if has_codes(matrix, inputs) and (multiplies_float8(self._device) or not is_float8):
            return CodedProduct(matrix, inputs, self._implementation)
        if has_even_groups(matrix) and inputs.has_units(dtype):
            return UnitsProduct(self._packed(matrix), inputs)
        return RoundedProduct(matrix, inputs)

    def _packed(self, matrix: QuantizedMatrix) -> PackedProduct:
        own, order = in_groups(matrix.by_rows())
        packed = pack_codes(
            own.codes,
            own.scales,
            bits=own.bits,
            group=own.group,
            zeros=own.zeros,
            offsets=own.offsets,
            table=own.table,
        )
        return PackedProduct(packed, self._workspaces, self._implementation, order=order)
