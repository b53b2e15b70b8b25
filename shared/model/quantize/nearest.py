"""Scales of a weight, and its codes by rounding each number to the nearest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from shared.errors import ModelLoadError
from shared.model.matrix.inputs import CODES, bounds, round_to, scale_of
from shared.model.matrix.quantized import QuantizedMatrix
from shared.model.matrix.rounding import Element, ScaleRule

if TYPE_CHECKING:
    from torch import Tensor

    from shared.model.quantize.scheme import Scheme

#: Numbers that are rounded at a time.
_AT_ONCE = 1 << 22


def round_to_nearest(weight: Tensor, scheme: Scheme) -> QuantizedMatrix:
    """Quantise a weight [rows, columns], of any dtype.

    Raises:
        ModelLoadError: it has a number that is not finite.
    """
    scales = find_scales(weight, scheme)
    rows, columns = weight.shape
    codes = torch.empty(rows, columns, dtype=code_dtype(scheme))
    step = max(1, _AT_ONCE // columns)
    for start in range(0, rows, step):
        part = weight[start : start + step].float()
        own = by_number(scales, scheme, range(start, start + len(part)), columns)
        codes[start : start + step] = encode(part, own, scheme).to(codes.dtype)
    return as_matrix(codes, scales, scheme)


def find_scales(weight: Tensor, scheme: Scheme) -> Tensor:
    """Return the scales [row ranges, groups] of a weight, in the dtype that they are stored in.

    Raises:
        ModelLoadError: it has a number that is not finite.
    """
    rows, columns = weight.shape
    group, row_range = scheme.weights.group or columns, scheme.row_range
    padded = pad(weight, (0, -columns % group, 0, -rows % row_range))
    peaks = padded.unflatten(1, (-1, group)).abs().amax(dim=2).float()
    peaks = peaks.unflatten(0, (-1, row_range)).amax(dim=1)
    if not peaks.isfinite().all():
        raise ModelLoadError("a number of the matrix is not finite")
    scales = scale_of(peaks, scheme.weights)
    if scheme.weights.scale is ScaleRule.POWER:
        return scales
    return scales.to(weight.dtype).clamp(min=torch.finfo(weight.dtype).tiny)


def by_number(scales: Tensor, scheme: Scheme, rows: range, columns: int) -> Tensor:
    """Return the float32 scale of each number of these rows."""
    group = scheme.weights.group or columns
    own = scales[torch.arange(rows.start, rows.stop) // scheme.row_range].float()
    return own.repeat_interleave(group, dim=1)[:, :columns]


def encode(values: Tensor, scales: Tensor, scheme: Scheme) -> Tensor:
    """Return the float32 codes that are nearest to float32 numbers, each with its scale."""
    rule = scheme.weights
    return round_to((values / scales).clamp(*bounds(rule)), rule.element)


def code_dtype(scheme: Scheme) -> torch.dtype:
    """Return the dtype of a scheme's codes in a record. Small floats are exact in E4M3."""
    own = scheme.weights.element
    return CODES[Element.INT if own is Element.INT else Element.E4M3]


def as_matrix(codes: Tensor, scales: Tensor, scheme: Scheme) -> QuantizedMatrix:
    """Return the record of these codes."""
    return QuantizedMatrix(
        codes=codes,
        bits=scheme.weights.bits,
        scales=scales,
        row_range=scheme.row_range,
        group=scheme.weights.group or codes.shape[1],
    )
