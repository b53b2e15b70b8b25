"""Rounding of a dense weight to codes of 4 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from shared.model.matrix.quantized import QuantizedMatrix

if TYPE_CHECKING:
    from torch import Tensor

#: Columns that share a scale.
GROUP = 32
_BITS = 4
_LEAST, _MOST = -8, 7
#: Numbers that are rounded at a time: few rows need little temporary memory.
_AT_ONCE = 1 << 18
#: How near a scale in float16 is, unless it is tiny or huge.
_HALF_ERROR = 2.0**-11


def round_to_codes(weight: Tensor) -> QuantizedMatrix:
    """Round a weight [rows, columns] to the nearest codes of 4 bits in groups of `GROUP` columns.

    The number of largest magnitude in a group becomes -8, whichever sign it has: steps are an
    eighth of it. Scales are float16 where all can be, and codes those of the scales as stored.
    """
    parts = weight.detach().split(max(1, _AT_ONCE // weight.shape[1]))
    scales = torch.cat([_scales(_by_group(part)) for part in parts])
    halves = scales.half()
    if torch.allclose(halves.float(), scales, rtol=_HALF_ERROR, atol=0.0):
        scales = halves
    codes = torch.empty(weight.shape, dtype=torch.int8)
    for part, own, to in zip(
        parts, scales.split(len(parts[0])), codes.split(len(parts[0])), strict=True
    ):
        numbers = _by_group(part) / own.float().unsqueeze(-1)
        to.copy_(numbers.round_().clamp_(_LEAST, _MOST).flatten(1)[:, : weight.shape[1]])
    return QuantizedMatrix(codes=codes, bits=_BITS, scales=scales, group=GROUP)


def _by_group(weight: Tensor) -> Tensor:
    """Float32 [rows, groups, GROUP], the last group padded with zeros."""
    padded = pad(weight.float(), (0, -weight.shape[1] % GROUP))
    return padded.view(len(weight), -1, GROUP)


def _scales(groups: Tensor) -> Tensor:
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True)).squeeze(-1)
    scales: Tensor = torch.where(largest == 0.0, 1.0, largest / _LEAST)
    return scales
