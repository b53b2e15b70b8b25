"""Weights in 4 or 8 bits, in the order in which the kernel reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kernels.quantize_rows.reference import dequantize_rows

if TYPE_CHECKING:
    from torch import Tensor

#: Input features that share a scale in 4 bits, and a step of the kernel.
GROUP_SIZE = 128
#: Symmetric numbers of 4 bits are -7 to 7, stored with this added.
MIDDLE = 8


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight [out_features, in_features].

    In 8 bits, `values` are int8 or float8_e4m3fn [out_features, in_features] and `scales` are
    float32 [out_features]. In 4 bits, `values` are uint8 [groups, out_features, 64], so that each
    program reads one contiguous piece: byte i of group g holds feature 128 g + i in its lower half
    and 128 g + 64 + i in its upper half. `scales` are then bfloat16 [groups, out_features], or
    other floats that a checkpoint has, and `zeros` are None or uint8 of that shape. A number is
    (code - zero) * scale; zero is 8 without `zeros`.
    """

    values: Tensor
    scales: Tensor
    in_features: int
    zeros: Tensor | None = None

    @property
    def is_int4(self) -> bool:
        """Whether two numbers share a byte."""
        return self.values.dtype == torch.uint8

    @property
    def out_features(self) -> int:
        """Number of rows of the weight."""
        return self.scales.shape[-1]

    @property
    def num_bytes(self) -> int:
        """Bytes that a product reads."""
        parts = (self.values, self.scales, self.zeros)
        return sum(part.nbytes for part in parts if part is not None)


def unpack(weight: PackedWeight) -> Tensor:
    """Return the packed numbers as float32 [out_features, in_features]."""
    if not weight.is_int4:
        return dequantize_rows(weight.values, weight.scales)
    codes = torch.cat((weight.values & 0xF, weight.values >> 4), dim=-1).float()
    codes -= MIDDLE if weight.zeros is None else weight.zeros.float().unsqueeze(-1)
    numbers = codes * weight.scales.float().unsqueeze(-1)  # [groups, out, 128]
    return numbers.transpose(0, 1).flatten(1)[:, : weight.in_features].contiguous()
