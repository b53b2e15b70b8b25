"""Weights of few bits, in the order in which the kernel reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

#: Input features of a step of the kernel.
STEP = 128
HALF = STEP // 2
#: Numbers of 4 bits with a sign are stored with this added.
MIDDLE = 8
#: Bits of the mantissa by type of floats in 8 bits.
_MANTISSAS = {torch.float8_e4m3fn: 3, torch.float8_e5m2: 2}
#: The numbers of E2M1, by code without the sign.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWeight:
    """A weight [out_features, in_features], each (number - zero) * scale - offset.

    The number is that of a code: itself, a float, or an entry of a table. In 8 bits, `values` are
    int8, float8_e4m3fn or float8_e5m2 [out_features, in_features]. In 4 bits, they are uint8
    [steps, out_features, 64], so that each program reads one contiguous piece: byte i of step s
    holds feature 128 s + i in its lower half and 128 s + 64 + i in its upper half.

    A float that is not finite has another meaning in Triton: the next larger number.
    """

    values: Tensor
    #: [groups, out_features]: floats, or uint8 that stand for 2 ** (scale - 127).
    scales: Tensor
    in_features: int
    #: Input features that share a scale; the last group may be shorter.
    group: int
    #: int8 of the scales' shape; None: all are `middle`.
    zeros: Tensor | None = None
    #: Floats of the scales' shape; None: all are 0.
    offsets: Tensor | None = None
    #: The code of 0 where there are no zeros.
    middle: int = 0
    #: 4 bits are floats in E2M1.
    is_e2m1: bool = False
    #: Float32 [16] or [256]: what codes stand for.
    table: Tensor | None = None

    @property
    def bits(self) -> int:
        """Bits of a code: 4 or 8."""
        return 4 if self.values.ndim == 3 else 8

    @property
    def mantissa(self) -> int:
        """Bits of a float's mantissa; 0: codes are no floats."""
        return 1 if self.is_e2m1 else _MANTISSAS.get(self.values.dtype, 0)

    @property
    def out_features(self) -> int:
        """Number of rows of the weight."""
        return self.scales.shape[1]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Everything that a product reads, by name."""
        names = ("values", "scales", "zeros", "offsets", "table")
        found = {name: getattr(self, name) for name in names}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    @property
    def num_bytes(self) -> int:
        """Bytes that a product reads."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def unpack(weight: PackedWeight) -> Tensor:
    """Return the weight as float32 [out_features, in_features]."""
    numbers = _numbers(weight)
    groups = torch.arange(weight.in_features, device=numbers.device) // weight.group

    def by_column(of_groups: Tensor) -> Tensor:
        return of_groups.float().T[:, groups]

    if weight.zeros is not None:
        numbers = numbers - by_column(weight.zeros)
    elif weight.middle:
        numbers = numbers - weight.middle
    numbers = numbers * by_column(scales_of(weight))
    return numbers if weight.offsets is None else numbers - by_column(weight.offsets)


def scales_of(weight: PackedWeight) -> Tensor:
    """Return the scales as floats."""
    if weight.scales.dtype != torch.uint8:
        return weight.scales
    return (weight.scales.int() << 23).view(torch.float32)


def _numbers(weight: PackedWeight) -> Tensor:
    """What the codes stand for, as float32 [out_features, in_features]."""
    codes = weight.values
    if weight.bits == 4:
        codes = torch.cat((codes & 0xF, codes >> 4), dim=-1).transpose(0, 1).flatten(1)
        codes = codes[:, : weight.in_features]
    table = weight.table
    if weight.is_e2m1:
        table = torch.tensor([*E2M1, *(-number for number in E2M1)], device=codes.device)
    return codes.float() if table is None else table[codes.view(torch.uint8).int()]
