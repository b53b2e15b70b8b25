"""Products with matrices as a checkpoint stores them, where inputs are rounded too.

PyTorch computes them: rounded inputs times weights, with scales in float32. Matrices whose inputs
are not rounded become dense.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import linear

if TYPE_CHECKING:
    from torch import Tensor

    from shared.model.linear.base import Product
    from shared.model.linear.fused import FusedLinear
    from shared.model.linear.quantized import QuantizedMatrix


class StoredProduct(nn.Module):
    """rounded(x) @ weight.T, in float32. The weight stays in 8 bits or fewer between steps."""

    def __init__(self, matrix: QuantizedMatrix) -> None:
        super().__init__()
        self.register_buffer("codes", matrix.codes)
        self.register_buffer("scales", matrix.scales)
        self._matrix = matrix

    def forward(self, x: Tensor) -> Tensor:
        """Map [num_tokens, in_features] to [num_tokens, out_features]."""
        inputs = self._matrix.inputs
        rows = x.float() if inputs is None else inputs.apply(x)
        return linear(rows, self._matrix.dense(torch.float32)).to(x.dtype)


class AsStored:
    """Matrices with rounded inputs are kept as they are stored, all others in the model's dtype."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def finish(self, linear: FusedLinear) -> Product | None:
        """See `LinearMethod.finish`."""
        return None

    def keep(self, matrix: QuantizedMatrix) -> Product | None:
        """See `LinearMethod.keep`."""
        return None if matrix.inputs is None else StoredProduct(matrix.to(self._device))
