"""Weights in 4 or 8 bits, packed in the order in which the kernel reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from kernels.quantize_rows.reference import dequantize_rows, quantize_rows

if TYPE_CHECKING:
    from torch import Tensor

#: Input features that share a scale in 4 bits, and a step of the kernel.
GROUP_SIZE = 128
_HALF = GROUP_SIZE // 2
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


def unpack(weight: PackedWeight) -> Tensor:
    """Return the packed numbers as float32 [out_features, in_features]."""
    if not weight.is_int4:
        return dequantize_rows(weight.values, weight.scales)
    codes = torch.cat((weight.values & 0xF, weight.values >> 4), dim=-1).float()
    codes -= MIDDLE if weight.zeros is None else weight.zeros.float().unsqueeze(-1)
    numbers = codes * weight.scales.float().unsqueeze(-1)  # [groups, out, 128]
    return numbers.transpose(0, 1).flatten(1)[:, : weight.in_features].contiguous()


def _rounded_up(scales: Tensor) -> Tensor:
    """Return scales rounded up to bfloat16: rounded down, the largest code would not fit."""
    bits = scales.view(torch.int32)
    return ((bits + 0xFFFF) & ~0xFFFF).view(torch.float32)
