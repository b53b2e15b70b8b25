"""`--quantization fp8` natively: linears are rounded to 8-bit floats while they are loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernels.quantize_rows import quantize_rows
from shared.model.matrix.inputs import InputRounding
from shared.model.matrix.quantized import QuantizedMatrix
from shared.model.matrix.rounding import Element, Rounding
from shared.model.native.packing.packing import Packing

if TYPE_CHECKING:
    from torch import Tensor

    from shared.model.linear.fused import FusedLinear
    from shared.model.matrix.blocks import AnyMatrix

_BITS = 8
_BY_TOKEN = InputRounding(Rounding(element=Element.E4M3, bits=_BITS))


class PackingFloat8s(Packing):
    """Rounds all linears to E4M3, with a scale per output feature, and inputs by token."""

    def keeps(self, matrix: AnyMatrix) -> bool:
        """See `LinearMethod.keeps`. Whatever a checkpoint stores is rounded again."""
        return False

    def _dense(self, linear: FusedLinear) -> int:
        matrix = round_to_float8s(linear.weight)
        return self._stored(matrix, linear.bias, paired=linear.is_gated)


def round_to_float8s(weight: Tensor) -> QuantizedMatrix:
    """Round a weight [rows, columns] to E4M3: the largest number of a row becomes 448."""
    codes, scales = quantize_rows(weight.detach(), torch.float8_e4m3fn)
    return QuantizedMatrix(
        codes=codes,
        bits=_BITS,
        scales=scales.unsqueeze(-1),
        group=weight.shape[1],
        inputs=_BY_TOKEN,
    )
