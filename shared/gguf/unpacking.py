"""Blocks of each type taken apart: codes are written, scales and offsets returned.

A block's fields lie one after the other, in the order in which they are cut off here. Functions
take blocks [n, bytes], and write to [n, values].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
    Scales: TypeAlias = np.ndarray[Any, np.dtype[np.floating[Any]]]
    #: Scales and offsets [n, groups].
    Groups: TypeAlias = tuple[Scales, Scales | None]

_BLANK = bytes(240)
#: By code of E2M1: E4M3. The negative zero counts as zero.
_MAGNITUDES = bytes([0x00, 0x30, 0x38, 0x3C, 0x40, 0x44, 0x48, 0x4C])
_E2M1 = _MAGNITUDES + bytes([0, *(0x80 | each for each in _MAGNITUDES[1:])])
#: The scale 2 to the power of -127, which is no normal number.
_LEAST_POWER = 0x00400000


def q4_0(blocks: Bytes, codes: Bytes) -> Groups:
    """16 bytes of nibbles, less 8."""
    scales, packed = _cut(blocks, 2, 16)
    _nibbles(packed, codes, 16)
    codes -= np.uint8(8)
    return _halves(scales), None


def q4_1(blocks: Bytes, codes: Bytes) -> Groups:
    """As Q4_0, from 0 on, with a minimum."""
    scales, least, packed = _cut(blocks, 2, 2, 16)
    _nibbles(packed, codes, 16)
    return _halves(scales), -_halves(least)


def q5_0(blocks: Bytes, codes: Bytes) -> Groups:
    """As Q4_0, with the fifth bits of all in 4 bytes; less 16."""
    scales, fifth, packed = _cut(blocks, 2, 4, 16)
    _nibbles(packed, codes, 16)
    codes |= np.unpackbits(fifth, axis=1, bitorder="little") << np.uint8(4)
    codes -= np.uint8(16)
    return _halves(scales), None


def q5_1(blocks: Bytes, codes: Bytes) -> Groups:
    """As Q5_0, from 0 on, with a minimum."""
    scales, least, fifth, packed = _cut(blocks, 2, 2, 4, 16)
    _nibbles(packed, codes, 16)
    codes |= np.unpackbits(fifth, axis=1, bitorder="little") << np.uint8(4)
    return _halves(scales), -_halves(least)


def q8_0(blocks: Bytes, codes: Bytes) -> Groups:
    """A byte for each."""
    scales, own = _cut(blocks, 2, 32)
    codes[:] = own
    return _halves(scales), None


def q2_k(blocks: Bytes, codes: Bytes) -> Groups:
    """Pairs of bits; scale and minimum of a group are nibbles, with a factor of the block each."""
    both, packed, scale, least = _cut(blocks, 16, 64, 2, 2)
    _pairs(packed, codes)
    own = np.ascontiguousarray(both)
    return _scaled(scale, own & 15), _scaled(least, own >> 4)


def q3_k(blocks: Bytes, codes: Bytes) -> Groups:
    """Pairs of bits, and a third bit that is there where 4 is not taken off."""
    third, packed, both, scale = _cut(blocks, 32, 64, 12, 2)
    _pairs(packed, codes)
    _add_bits(third, codes, 2)
    codes -= np.uint8(4)
    turned = np.ascontiguousarray(both.T)
    low, high = turned[:8], turned[8:]
    own = np.concatenate([low & 15, low >> 4])
    own |= np.concatenate([(high >> shift & 3) << 4 for shift in (0, 2, 4, 6)])
    return _scaled(scale, own.T.view(np.int8) - np.int8(32)), None


def q4_k(blocks: Bytes, codes: Bytes) -> Groups:
    """Nibbles by 32; scale and minimum of a group have 6 bits, with a factor of the block each."""
    scale, least, both, packed = _cut(blocks, 2, 2, 12, 128)
    _nibbles(packed, codes, 32)
    return _six_bits(scale, least, both)


def q5_k(blocks: Bytes, codes: Bytes) -> Groups:
    """As Q4_K, with a fifth bit: bit g of a byte is that of a number in group g."""
    scale, least, both, fifth, packed = _cut(blocks, 2, 2, 12, 32, 128)
    _nibbles(packed, codes, 32)
    _add_bits(fifth, codes, 4)
    return _six_bits(scale, least, both)


def q6_k(blocks: Bytes, codes: Bytes) -> Groups:
    """Nibbles by 64, with two bits more, less 32; a group's scale is a byte."""
    packed, more, own, scale = _cut(blocks, 128, 64, 16, 2)
    _nibbles(packed, codes, 64)
    bits = np.empty_like(codes)
    _pairs(more, bits)
    codes |= bits << 4
    codes -= np.uint8(32)
    return _scaled(scale, own.view(np.int8)), None


def iq4_nl(blocks: Bytes, codes: Bytes) -> Groups:
    """As Q4_0, of places in a table."""
    scales, packed = _cut(blocks, 2, 16)
    _nibbles(packed, codes, 16)
    return _halves(scales), None


def iq4_xs(blocks: Bytes, codes: Bytes) -> Groups:
    """As IQ4_NL; a group's scale has 6 bits, less 32."""
    scale, high, low, packed = _cut(blocks, 2, 2, 4, 128)
    _nibbles(packed, codes, 16)
    own = np.empty((len(low), 8), np.uint8)
    for group in range(8):
        nibble = low[:, group // 2] >> group % 2 * 4 & 15
        own[:, group] = nibble | (high[:, group // 4] >> group % 4 * 2 & 3) << 4
    return _scaled(scale, own.view(np.int8) - np.int8(32)), None


def mxfp4(blocks: Bytes, codes: Bytes) -> Groups:
    """As Q4_0, of floats with an exponent of two as scale, 127 being added."""
    exponents, packed = _cut(blocks, 1, 16)
    _nibbles(packed, codes, 16)
    _look_up(codes, _E2M1)
    bits = np.where(exponents == 0, np.uint32(_LEAST_POWER), exponents.astype(np.uint32) << 23)
    return bits.view(np.float32), None


def _cut(blocks: Bytes, *sizes: int) -> Iterator[Bytes]:
    """Yield the fields of all blocks, which are of these sizes."""
    start = 0
    for size in sizes:
        yield blocks[:, start : start + size]
        start += size


def _halves(field: Bytes) -> Scales:
    """Return float16 numbers [n, 1]."""
    return np.ascontiguousarray(field).view(np.float16)


def _scaled(factor: Bytes, scales: Any) -> Scales:
    """Return whole numbers [n, groups] times float16 numbers [n, 1], in float32."""
    own: Scales = np.array(scales, np.float32, order="C")
    own *= _halves(factor).astype(np.float32)
    return own


# Numpy takes long for each of many short rows: such rows are made one behind the other, and copied
# to their places as single elements.


def _nibbles(packed: Bytes, codes: Bytes, run: int) -> None:
    """Write the low nibbles of each `run` bytes, and their high ones behind these."""
    own, runs = np.ascontiguousarray(packed), _runs(codes, run)
    runs[:, 0::2] = _runs(own & 15, run)
    runs[:, 1::2] = _runs(own >> 4, run)


def _pairs(packed: Bytes, codes: Bytes) -> None:
    """Write the pairs of bits of each 32 bytes, the lowest of all first."""
    own, runs = np.ascontiguousarray(packed), _runs(codes, 32)
    for place in range(4):
        runs[:, place::4] = _runs(own >> 2 * place & 3, 32)


def _add_bits(bits: Bytes, codes: Bytes, place: int) -> None:
    """Add bit g of each of 32 bytes to the codes of group g."""
    own, added = np.ascontiguousarray(bits), np.empty_like(codes)
    runs = _runs(added, 32)
    for group in range(8):
        runs[:, group : group + 1] = _runs((own >> group & 1) << place, 32)
    codes |= added


def _runs(numbers: np.ndarray[Any, Any], run: int) -> np.ndarray[Any, Any]:
    """A view [n, runs] of bytes [n, values]."""
    return numbers.view(np.dtype((np.void, run)))


def _look_up(codes: Bytes, values: bytes) -> None:
    """Replace codes of 4 bits."""
    found = codes.tobytes().translate(values + _BLANK)
    codes[:] = np.frombuffer(found, np.uint8).reshape(codes.shape)


def _six_bits(scale: Bytes, least: Bytes, both: Bytes) -> Groups:
    """Scales and minima of eight groups: of the last four, two bits are beside the first four."""
    turned = np.ascontiguousarray(both.T)
    first, second, nibbles = turned[:4], turned[4:8], turned[8:]
    scales = np.concatenate([first & 63, (nibbles & 15) | (first >> 2 & 48)])
    minima = np.concatenate([second & 63, (nibbles >> 4) | (second >> 2 & 48)])
    return _scaled(scale, scales.T), _scaled(least, minima.T)
