"""Weights of 8 or 4 bits for PyTorch and Triton, made while a model is loaded.

`int8` and `fp8` round the activations to the same 8 bits, with one scale per token; so a token's
result does not depend on the number of others in its step. `int4` does not round activations.
Embedding, head and norms keep their dtype.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from kernels.device import current_arch, multiplies_float8
from kernels.quantize_rows import quantize_rows
from kernels.quantized_matmul import quantized_matmul
from kernels.weight_only_matmul.packing import pack_int4
from shared.errors import ConfigError
from shared.model.linear.base import MadeOfDense
from shared.model.linear.packed import PackedProduct, make_workspaces

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.weight_only_matmul.weight import PackedWeight
    from shared.model.linear.base import Product
    from shared.model.linear.fused import FusedLinear

_TYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
#: Elements of a weight that are packed at a time.
_AT_ONCE = 1 << 17


class Product8(nn.Module):
    """x @ weight.T, both in 8 bits, with a scale per token and one per output feature."""

    values: Tensor
    scales: Tensor

    def __init__(self, weight: Tensor, dtype: torch.dtype, implementation: str) -> None:
        """Quantise `weight` [out_features, in_features] by rows to `dtype`."""
        super().__init__()
        values, scales = quantize_rows(weight, dtype, implementation=implementation)
        self.register_buffer("values", values)
        self.register_buffer("scales", scales)
        self._implementation = implementation

    def forward(self, x: Tensor) -> Tensor:
        """Map [num_tokens, in_features] to [num_tokens, out_features]."""
        how = self._implementation
        rows, row_scales = quantize_rows(x, self.values.dtype, implementation=how)
        return quantized_matmul(
            rows, row_scales, self.values, self.scales, out_dtype=x.dtype, implementation=how
        )


def _pack(weight: Tensor) -> PackedWeight:
    """Round a weight [out_features, in_features] to 4 bits."""
    # Rows are independent, and a few at a time need little temporary memory.
    packed = [pack_int4(rows) for rows in weight.split(max(1, _AT_ONCE // weight.shape[1]))]
    return replace(
        packed[0],
        values=torch.cat([part.values for part in packed], dim=1),
        scales=torch.cat([part.scales for part in packed], dim=1),
    )


def check_quantization(name: str, device: torch.device) -> None:
    """Check that the device can compute with such weights.

    Raises:
        ConfigError: it cannot; names an alternative.
    """
    if name == "fp8" and not multiplies_float8(device):
        raise ConfigError(
            f"quantization 'fp8' needs compute capability 8.9, {device} has "
            f"{current_arch(device) / 10}: take int8"
        )


class Narrow(MadeOfDense):
    """Weights of 8 or 4 bits on `device`, converted as soon as each is complete."""

    def __init__(self, name: str, device: torch.device, *, implementation: str) -> None:
        """Set the format (int8, fp8, int4) and the kernels' implementation (`torch`, `triton`)."""
        self._name = name
        self._device = device
        self._implementation = implementation
        self._workspaces = make_workspaces()

    def finish(self, linear: FusedLinear) -> Product:
        """See `LinearMethod.finish`. One matrix at a time is copied to the device."""
        weight = linear.weight.to(self._device)
        if self._name == "int4":
            return PackedProduct(_pack(weight), self._workspaces, self._implementation)
        return Product8(weight, _TYPES[self._name], self._implementation)
