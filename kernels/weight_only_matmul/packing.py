"""Packing of weights into 4 or 8 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from kernels.quantize_rows.reference import quantize_rows
from kernels.weight_only_matmul.weight import E2M1, HALF, MIDDLE, STEP, PackedWeight

if TYPE_CHECKING:
    from torch import Tensor

_MOST_BITS_OF_FOURS = 4
#: Input features that share a scale where a weight is rounded to 4 bits.
_GROUP = STEP


def pack_8_bits(weight: Tensor, dtype: torch.dtype) -> PackedWeight:
    """Return weight [out_features, in_features] with one scale per output feature."""
    values, scales = quantize_rows(weight, dtype)
    in_features = weight.shape[1]
    return PackedWeight(
        values=values, scales=scales.unsqueeze(0), in_features=in_features, group=in_features
    )


def pack_int4(weight: Tensor, *, symmetric: bool = True) -> PackedWeight:
    """Return a weight with one scale, and one zero unless symmetric, per 128 input features.

    weight: [out_features, in_features]. The last group is padded with zeros. Numbers are rounded
    with the scale as it is stored, so that rounding the scale adds no error.
    """
    out_features, in_features = weight.shape
    padded = pad(weight.float(), (0, -in_features % _GROUP))
    groups = padded.view(out_features, -1, _GROUP)
    if symmetric:
        scales = _rounded_up(groups.abs().amax(dim=-1) / 7)
        lowest, zeros = MIDDLE - 7, torch.full_like(scales, MIDDLE)
    else:
        least, most = groups.amin(dim=-1).clamp(max=0), groups.amax(dim=-1).clamp(min=0)
        scales = _rounded_up((most - least) / 15)
        lowest, zeros = 0, (-least / scales.clamp(min=1e-30)).round().clamp(0, 15)
    wide = scales.clamp(min=1e-30).unsqueeze(-1)
    codes = (groups / wide).round() + zeros.unsqueeze(-1)
    return PackedWeight(
        values=_in_halves(codes.clamp(lowest, 15).to(torch.uint8).flatten(1)),
        scales=scales.T.to(torch.bfloat16).contiguous(),
        in_features=in_features,
        group=_GROUP,
        zeros=None if symmetric else zeros.T.to(torch.int8).contiguous(),
        middle=MIDDLE,
    )


def pack_codes(
    codes: Tensor,
    scales: Tensor,
    *,
    bits: int,
    group: int,
    zeros: Tensor | None = None,
    offsets: Tensor | None = None,
    table: Tensor | None = None,
) -> PackedWeight:
    """Return the weight (codes - zeros) * scales - offsets, exactly.

    codes: [out_features, in_features]: int8, with a sign or from 0; float8_e4m3fn, which are E2M1
    if there are 4 bits; float8_e5m2; or uint8, with a table of their numbers. scales, zeros (int8)
    and offsets: [out_features, groups].
    """
    is_e2m1, middle, values = False, 0, codes
    if bits <= _MOST_BITS_OF_FOURS:
        is_e2m1 = codes.dtype == torch.float8_e4m3fn
        if is_e2m1:
            values = _codes_of_e2m1(codes)
        elif codes.dtype == torch.int8 and int(codes.min()) < 0:
            middle = MIDDLE
        values = _in_halves((values + middle).view(torch.uint8))
    return PackedWeight(
        values=values.contiguous(),
        scales=_narrowed(scales.T.contiguous()),
        in_features=codes.shape[1],
        group=group,
        zeros=None if zeros is None else (zeros.T + middle).contiguous(),
        offsets=None if offsets is None else offsets.T.contiguous(),
        middle=middle,
        is_e2m1=is_e2m1,
        table=table,
    )


def _in_halves(codes: Tensor) -> Tensor:
    """Pack uint8 [out_features, in_features] as [steps, out_features, 64]."""
    padded = pad(codes, (0, -codes.shape[1] % STEP))
    steps = padded.unflatten(1, (-1, STEP)).transpose(0, 1)
    halves: Tensor = steps[..., :HALF] | steps[..., HALF:] << 4
    return halves.contiguous()


def _codes_of_e2m1(numbers: Tensor) -> Tensor:
    """The codes, uint8, of numbers of E2M1 in float8_e4m3fn."""
    positive = torch.tensor(E2M1).to(torch.float8_e4m3fn).view(torch.uint8).int()
    codes = torch.zeros(256, dtype=torch.uint8)
    codes[positive] = torch.arange(8, dtype=torch.uint8)
    codes[positive + 128] = torch.arange(8, 16, dtype=torch.uint8)
    found: Tensor = codes.to(numbers.device)[numbers.view(torch.uint8).int()]
    return found


def _narrowed(scales: Tensor) -> Tensor:
    """Return scales in the least bits that hold them: powers of two are exponents."""
    if scales.dtype != torch.float32:
        return scales
    bits = scales.view(torch.int32)
    exponents = bits >> 23
    if bool(((bits & 0x7FFFFF == 0) & (exponents > 0) & (exponents < 255)).all()):
        return exponents.to(torch.uint8)
    halves = scales.to(torch.bfloat16)
    return halves if torch.equal(halves.float(), scales) else scales


def _rounded_up(scales: Tensor) -> Tensor:
    """Return scales rounded up to bfloat16: rounded down, the largest code would not fit."""
    bits = scales.view(torch.int32)
    return ((bits + 0xFFFF) & ~0xFFFF).view(torch.float32)
