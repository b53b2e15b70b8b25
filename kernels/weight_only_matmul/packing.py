"""Weights in 4 or 8 bits, in the order in which the kernel reads them."""

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

    In 8 bits `values` are int8 or float8_e4m3fn [out_features, in_features] and `scales` float32
    [out_features]. In 4 bits `values` are uint8 [groups, out_features, 64], so that what a program
    reads lies in one piece: byte i of group g has feature 128 g + i in its lower and 128 g + 64 + i
    in its upper half. Then `scales` are bfloat16 [groups, out_features], and `zeros`, if there are
    any, uint8 of that shape: a number is (code - zero) * scale, with zero 8 where there are none.
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
        """Rows of the weight."""
        return self.scales.shape[-1]

    @property
    def num_bytes(self) -> int:
        """What a product has to read."""
        parts = (self.values, self.scales, self.zeros)
        return sum(part.nbytes for part in parts if part is not None)


def pack_8_bits(weight: Tensor, dtype: torch.dtype) -> PackedWeight:
    """With one scale per output feature. weight: [out_features, in_features]."""
    values, scales = quantize_rows(weight, dtype)
    return PackedWeight(values, scales, weight.shape[1])


def pack_int4(weight: Tensor, *, symmetric: bool = True) -> PackedWeight:
    """With one scale per 128 input features, and one zero point unless it is symmetric.

    weight: [out_features, in_features]. A last group that is not full is filled up with zeros.
    Numbers are rounded with the scale as it is stored, so that rounding it costs nothing more.
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
    codes = codes.clamp(lowest, 15).to(torch.uint8).transpose(0, 1)  # [groups, out, 128]
    return PackedWeight(
        (codes[..., :_HALF] | codes[..., _HALF:] << 4).contiguous(),
        scales.T.to(torch.bfloat16).contiguous(),
        in_features,
        None if symmetric else zeros.T.to(torch.uint8).contiguous(),
    )


def unpack(weight: PackedWeight) -> Tensor:
    """float32 [out_features, in_features]: what the packed numbers stand for."""
    if not weight.is_int4:
        return dequantize_rows(weight.values, weight.scales)
    codes = torch.cat((weight.values & 0xF, weight.values >> 4), dim=-1).float()
    codes -= MIDDLE if weight.zeros is None else weight.zeros.float().unsqueeze(-1)
    numbers = codes * weight.scales.float().unsqueeze(-1)  # [groups, out, 128]
    return numbers.transpose(0, 1).flatten(1)[:, : weight.in_features].contiguous()


def _rounded_up(scales: Tensor) -> Tensor:
    """The next numbers that bfloat16 has too: rounding down would put the largest out of range."""
    bits = scales.view(torch.int32)
    return ((bits + 0xFFFF) & ~0xFFFF).view(torch.float32)
