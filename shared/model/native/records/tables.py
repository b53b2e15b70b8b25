"""Codes of 4 bits that stand for integers of a table, times one factor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from shared.model.matrix.quantized import QuantizedMatrix

_BITS = 4
#: Twice the numbers of E2M1, in the order of their codes.
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
_MOST = 127


@dataclass(frozen=True, slots=True)
class Table:
    """A code c stands for numbers[c] * factor."""

    #: int8 [16].
    numbers: Tensor
    factor: float


_TABLE_OF_FLOATS = Table(torch.tensor(_E2M1, dtype=torch.int8), 0.5)


def integer_table(matrix: QuantizedMatrix) -> Table | None:
    """Return the table of a matrix's codes; None: they have none of integers."""
    if matrix.bits != _BITS:
        return None
    if matrix.codes.dtype == torch.float8_e4m3fn:
        return _TABLE_OF_FLOATS
    own = matrix.table
    if (
        own is None
        or len(own) != 1 << _BITS
        or own.abs().max() > _MOST
        or (own.round() != own).any()
    ):
        return None
    return Table(own.to(torch.int8).cpu(), 1.0)


def places(matrix: QuantizedMatrix) -> Tensor:
    """Return int8 codes in the `integer_table`."""
    if matrix.table is not None:
        return matrix.codes.view(torch.int8)
    floats = _TABLE_OF_FLOATS.numbers.float() * _TABLE_OF_FLOATS.factor
    floats[8] = -0.0
    known = torch.zeros(256, dtype=torch.int8)
    known[floats.to(torch.float8_e4m3fn).view(torch.uint8).int()] = torch.arange(
        16, dtype=torch.int8
    )
    codes = matrix.codes.contiguous().view(torch.uint8)
    return known.index_select(0, codes.flatten().int()).view(codes.shape)
