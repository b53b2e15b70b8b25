"""GPTQ: codes for which the outputs of a linear, not its numbers, are near those of the weight.

After Frantar et al., 2022 (arXiv 2210.17323). Columns are rounded one after the other, those with
the largest inputs first. What rounding a column changes in the outputs, the columns behind it make
up for: with H = X^T X of the inputs X, by rows of the Cholesky factor of H's inverse. Scales are
those of the weight as it was, so a group may be any columns.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch

from shared.errors import ModelLoadError
from shared.model.quantize.nearest import as_matrix, by_number, code_dtype, encode, find_scales

if TYPE_CHECKING:
    from torch import Tensor

    from shared.model.matrix.quantized import QuantizedMatrix
    from shared.model.quantize.scheme import Scheme

#: Columns after which the columns behind are updated.
_BLOCK = 128
#: By what share of its mean the diagonal grows, so that H has an inverse; more if it has none yet.
_DAMPING = (0.01, 0.1, 1.0)


class Hessian:
    """The sum of x^T x of the inputs x of a linear; of projections of the same inputs it is one."""

    def __init__(self, columns: int) -> None:
        self.total = torch.zeros(columns, columns)

    def add(self, x: Tensor) -> None:
        """Add inputs float32 [num_tokens, columns]."""
        self.total.addmm_(x.T, x)

    @cached_property
    def order(self) -> Tensor:
        """The columns, those with the largest inputs first. Once all inputs are added."""
        return self.total.diagonal().argsort(descending=True, stable=True)

    @cached_property
    def factor(self) -> Tensor:
        """The upper Cholesky factor of the damped inverse, by `order`.

        Raises:
            ModelLoadError: an input was not finite.
        """
        return _inverse_factor(self.total[self.order][:, self.order])


def quantise_for(weight: Tensor, scheme: Scheme, hessian: Hessian) -> QuantizedMatrix:
    """Quantise a weight [rows, columns] for inputs like those of `hessian`.

    Raises:
        ModelLoadError: it has a number that is not finite, or the inputs had one.
    """
    rows, columns = weight.shape
    scales = find_scales(weight, scheme)
    order, factor = hessian.order, hessian.factor
    # A column is a row here, so that it lies in one piece.
    left = weight.float().T[order].contiguous()
    own = by_number(scales, scheme, range(rows), columns).T[order].contiguous()
    rounded = torch.empty(columns, rows)
    for start in range(0, columns, _BLOCK):
        end = min(start + _BLOCK, columns)
        errors = torch.empty(end - start, rows)
        for at in range(start, end):
            code = encode(left[at], own[at], scheme)
            rounded[at] = code
            error = torch.addcmul(left[at], code, own[at], value=-1).div_(factor[at, at])
            left[at:end].addr_(factor[at, at:end], error, alpha=-1)
            errors[at - start] = error
        left[end:].addmm_(factor[start:end, end:].T, errors, alpha=-1)
    codes = torch.empty(rows, columns, dtype=code_dtype(scheme))
    codes[:, order] = rounded.T.to(codes.dtype)
    return as_matrix(codes, scales, scheme)


def _inverse_factor(hessian: Tensor) -> Tensor:
    """The upper Cholesky factor of the damped inverse."""
    if not hessian.isfinite().all():
        raise ModelLoadError("an input of the linear is not finite in calibration")
    mean = hessian.diagonal().mean().clamp(min=torch.finfo(torch.float32).tiny)
    eye = torch.eye(len(hessian))
    for damping in _DAMPING:
        lower, fails = torch.linalg.cholesky_ex(hessian / mean + damping * eye)
        if not fails:
            inverse = torch.cholesky_inverse(lower)
            upper: Tensor
            upper, fails = torch.linalg.cholesky_ex(inverse, upper=True)
            if not fails:
                return upper
    raise ModelLoadError("the inputs of the linear have no damped inverse in calibration")
