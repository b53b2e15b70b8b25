"""Packing of weights into 4 or 8 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from kernels.quantize_rows.reference import quantize_rows
from kernels.weight_only_matmul.weight import GROUP_SIZE, MIDDLE, PackedWeight

if TYPE_CHECKING:
    from torch import Tensor

_HALF = GROUP_SIZE // 2


def pack_8_bits(weight: Tensor, dtype: torch.dtype) -> PackedWeight:
    """Return weight [out_features, in_features] with one scale per output feature."""
    values, scales = quantize_rows(weight, dtype)
    return PackedWeight(values, scales, weight.shape[1])


def pack_int4(weight: Tensor, *, symmetric: bool = True) -> PackedWeight:
    """Return a weight with one scale, and one zero unless symmetric, per 128 input features.

    weight: [out_features, in_features]. The last group is padded with zeros. Numbers are rounded
    with the scale as it is stored, so that rounding the scale adds no error.
    """
    out_features, in_features = weight.shape
    padded = pad(weight.float(), (0, -in_features % GROUP_SIZE))
    groups = padded.view(out_features, -1, GROUP_SIZE)
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
        _in_halves(codes.clamp(lowest, 15).to(torch.uint8)),
        scales.T.to(torch.bfloat16).contiguous(),
        in_features,
        None if symmetric else zeros.T.to(torch.uint8).contiguous(),
    )


def pack_codes(codes: Tensor, scales: Tensor, zeros: Tensor | None) -> PackedWeight:
    """Return the weight (codes - zeros) * scales, exactly.

    codes: int8 from -8 to 7 [out_features, in_features]; scales: floats, and zeros: int8 or None
    for 0, [out_features, groups].
    """
    in_features = codes.shape[1]
    padded = pad(codes + MIDDLE, (0, -in_features % GROUP_SIZE)).view(torch.uint8)
    return PackedWeight(
        _in_halves(padded.unflatten(1, (-1, GROUP_SIZE))),
        scales.T.contiguous(),
        in_features,
        None if zeros is None else (zeros.T + MIDDLE).to(torch.uint8).contiguous(),
    )


def _in_halves(codes: Tensor) -> Tensor:
    """Pack uint8 [out, groups, 128] as [groups, out, 64]."""
    codes = codes.transpose(0, 1)
    return (codes[..., :_HALF] | codes[..., _HALF:] << 4).contiguous()


def _rounded_up(scales: Tensor) -> Tensor:
    """Return scales rounded up to bfloat16: rounded down, the largest code would not fit."""
    bits = scales.view(torch.int32)
    return ((bits + 0xFFFF) & ~0xFFFF).view(torch.float32)
