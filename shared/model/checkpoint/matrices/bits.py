"""Numbers out of words that have several, and integers and small floats out of their bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import pad

from shared.model.matrix.rounding import Element

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shared.model.checkpoint.matrices.layout import Packing, Planes

#: Numbers that are unpacked at a time, in words of 64 bits.
_AT_ONCE = 1 << 20
#: By bits of a number: words with a byte for each of those in a byte, and the bits that are theirs.
_SPREAD: dict[int, tuple[Any, int]] = {
    1: (np.uint64, 0x0101010101010101),
    2: (np.uint32, 0x03030303),
    4: (np.uint16, 0x0F0F),
}
_WORDS_AT_ONCE = 1 << 16
#: Numbers of 4 bits in a word of 32.
_SIDE = 8
#: By float: bits of exponent and mantissa, and what is added to the exponent.
_FLOATS = {Element.E2M1: (2, 1, 1), Element.E2M3: (2, 3, 1), Element.E3M2: (3, 2, 3)}


def unpack(lines: Tensor, packing: Packing, length: int) -> Tensor:
    """Return the first `length` numbers of each line of words, uint8."""
    # Flat, since a line of one word may have any step.
    flat, bits = lines.contiguous().flatten(), packing.bits
    words = flat.view(torch.uint8).unflatten(0, (len(lines), -1))
    if bits in _SPREAD:
        numbers = whole_parts(words, bits)
    elif bits == 8:
        numbers = words
    else:
        step = max(1, _AT_ONCE // max(1, length))
        numbers = torch.cat([_straddling(part, bits) for part in words.split(step)])
    if packing.order is not None:
        numbers = numbers.unflatten(-1, (-1, len(packing.order)))
        numbers = numbers.index_select(-1, torch.tensor(packing.order)).flatten(-2)
    return numbers[:, :length].contiguous()


def crossed(words: Tensor, order: Sequence[int]) -> Tensor:
    """Return words of eight numbers of a column each, of words of eight numbers of a row.

    words: int32 [rows, words], numbers of 4 bits; order: the place of each in a word. Returns int32
    [columns, words]. The last rows that fill no word are left out.
    """
    rows, length = words.shape[0] // _SIDE, words.shape[1]
    own = words.contiguous().numpy().view(np.uint32)[: rows * _SIDE].reshape(rows, _SIDE, length)
    found = np.empty((length, _SIDE, rows), np.uint32)
    places, step = list(order), max(1, _WORDS_AT_ONCE // (_SIDE * length))
    for start in range(0, rows, step):
        part = own[start : start + step].copy()
        _turn(part)
        found[:, :, start : start + step] = part[:, places].transpose(2, 1, 0)
    return torch.from_numpy(found.reshape(length * _SIDE, rows).view(np.int32))


def _turn(squares: np.ndarray[Any, np.dtype[np.uint32]]) -> None:
    """Exchange number i of word k with number k of word i in squares [n, 8, m] of words."""
    for distance, mask in ((4, 0x0000FFFF), (2, 0x00FF00FF), (1, 0x0F0F0F0F)):
        pairs = squares.reshape(len(squares), -1, 2, distance, squares.shape[-1])
        first, second, shift = pairs[:, :, 0], pairs[:, :, 1], np.uint32(4 * distance)
        exchanged = ((first >> shift) ^ second) & np.uint32(mask)
        second ^= exchanged
        first ^= exchanged << shift


def from_planes(words: Tensor, planes: Planes, size: int) -> Tensor:
    """Return the first `size` numbers, uint8."""
    flat, mask = words.contiguous().flatten(), 2**planes.bits - 1
    shifts = range(planes.bits * (planes.num_parts - 1), -1, -planes.bits)
    parts = [((flat >> shift) & mask).to(torch.uint8) for shift in shifts]
    return torch.cat(parts)[:size]


def whole_parts(words: Tensor, bits: int) -> Tensor:
    """Return numbers of which several are a byte: each in a byte of a wider word.

    Few at a time, and so in the cache. With NumPy, as PyTorch's threads would wait for each other
    after each operation, and for long on a busy machine.
    """
    dtype, mask = _SPREAD[bits]
    numbers = np.empty((*words.shape[:-1], words.shape[-1] * 8 // bits), np.uint8)
    own, to = words.numpy().reshape(-1), numbers.reshape(-1).view(dtype)
    for start in range(0, len(own), _WORDS_AT_ONCE):
        part = own[start : start + _WORDS_AT_ONCE].astype(dtype)
        spread = part.copy()
        for place in range(1, 8 // bits):
            spread |= part << place * (8 - bits)
        np.bitwise_and(spread, mask, out=to[start : start + _WORDS_AT_ONCE])
    return torch.from_numpy(numbers)


def _straddling(words: Tensor, bits: int) -> Tensor:
    """Numbers that may have bits in two bytes: eight of them are in `bits` bytes."""
    groups = pad(words, (0, -words.shape[1] % bits)).unflatten(-1, (-1, bits)).long()
    whole = (groups << torch.arange(0, 8 * bits, 8)).sum(dim=-1, keepdim=True)
    numbers: Tensor = (whole >> torch.arange(0, 8 * bits, bits)) & (2**bits - 1)
    return numbers.flatten(-2).to(torch.uint8)


def signed(values: Tensor, bits: int, *, is_offset: bool) -> Tensor:
    """Return integers as int8; half of their range was added, or they are two's complement."""
    if values.dtype == torch.int8:
        return values
    if values.dtype == torch.int32:
        return (values - (1 << (bits - 1)) if is_offset else values).to(torch.int8)
    if bits == 8:
        return (values ^ 128).view(torch.int8) if is_offset else values.view(torch.int8)
    half = 1 << (bits - 1)
    own = values.view(torch.int8)
    return own - half if is_offset else (own ^ half) - half


def float_table(element: Element) -> Tensor:
    """Return all floats of a type of less than 8 bits, by code, in E4M3."""
    exponent_bits, mantissa_bits, bias = _FLOATS[element]
    code = torch.arange(1 << (1 + exponent_bits + mantissa_bits))
    mantissa = (code & ((1 << mantissa_bits) - 1)).float() / (1 << mantissa_bits)
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    small = torch.ldexp(mantissa, torch.tensor(1 - bias))
    large = torch.ldexp(1 + mantissa, exponent - bias)
    magnitude = torch.where(exponent == 0, small, large)
    is_negative = code >> (exponent_bits + mantissa_bits) == 1
    return torch.where(is_negative, -magnitude, magnitude).to(torch.float8_e4m3fn)
