"""Makes the stored tensors of a matrix: the inverse of `matrices.unpacking`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from shared.model.checkpoint.matrices.bits import float_table
from shared.model.checkpoint.matrices.layout import WORD_BITS
from shared.model.matrix.rounding import Element

if TYPE_CHECKING:
    from torch import Tensor

    from shared.model.checkpoint.matrices.layout import Array, Layout, Packing
    from shared.model.matrix.quantized import QuantizedMatrix

#: Numbers that are packed at a time, in words of 64 bits.
_AT_ONCE = 1 << 20
_EXPONENT_SHIFT = 23


def pack_matrix(matrix: QuantizedMatrix, layout: Layout) -> dict[str, Tensor]:
    """Return the tensors of a matrix without zeros, by what their names have behind the module's.

    layout: of codes and scales only.
    """
    scales = matrix.scales
    if layout.are_powers:
        scales = (scales.float().view(torch.int32) >> _EXPONENT_SHIFT).to(torch.uint8)
    found = {
        layout.codes.suffix: _stored(layout.codes, _numbers(matrix.codes, layout)),
        layout.scales.suffix: _stored(layout.scales, scales),
    }
    if layout.size is not None:
        found[layout.size] = torch.tensor(matrix.shape)
    return found


def _numbers(codes: Tensor, layout: Layout) -> Tensor:
    """Codes as they are stored: packed ones as uint8, from 0 on."""
    if layout.codes.packing is None:
        return codes
    if layout.element is not Element.INT:
        places = torch.zeros(256, dtype=torch.uint8)
        own = float_table(layout.element).view(torch.uint8)
        places[own.long()] = torch.arange(len(own), dtype=torch.uint8)
        return places[codes.view(torch.uint8).int()]
    half = 1 << (layout.bits - 1)
    shifted = codes.short() + half if layout.is_offset else codes.short() & (2 * half - 1)
    return shifted.to(torch.uint8)


def _stored(array: Array, numbers: Tensor) -> Tensor:
    packing = array.packing
    if packing is not None:
        word = WORD_BITS[array.dtypes[0]]
        if packing.is_along_rows:
            numbers = _pack(numbers, packing, word)
        else:
            numbers = _pack(numbers.T, packing, word).T
    return (numbers.T if array.is_turned else numbers).contiguous()


def _pack(lines: Tensor, packing: Packing, word: int) -> Tensor:
    """Words of each line: int32 or uint8."""
    length, bits = lines.shape[1], packing.bits
    size = -(-length * bits // word) * word // 8
    lines = pad(lines, (0, -length % 8))
    if packing.order is not None:
        places = torch.tensor(packing.order).argsort()
        lines = lines.unflatten(1, (-1, len(places)))[..., places].flatten(1)
    step = max(1, _AT_ONCE // max(1, length))
    packed = torch.cat([_to_bytes(part, bits) for part in lines.split(step)])
    packed = pad(packed, (0, max(0, size - packed.shape[1])))[:, :size].contiguous()
    return packed.view(torch.int32) if word > 8 else packed


def _to_bytes(lines: Tensor, bits: int) -> Tensor:
    """Eight numbers as `bits` bytes."""
    eights = lines.unflatten(1, (-1, 8)).long()
    whole = (eights << torch.arange(0, 8 * bits, bits)).sum(dim=-1, keepdim=True)
    packed: Tensor = (whole >> torch.arange(0, 8 * bits, 8)) & 255
    return packed.to(torch.uint8).flatten(1)
