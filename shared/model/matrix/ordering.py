"""Matrices whose groups of columns are no ranges, with their columns in another order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from shared.model.matrix.quantized import QuantizedMatrix


def has_even_groups(matrix: QuantizedMatrix) -> bool:
    """Return whether groups are ranges of columns, or would be in another order."""
    if matrix.column_groups is None:
        return True
    num_groups = matrix.scales.shape[1]
    sizes = torch.bincount(matrix.column_groups, minlength=num_groups)
    return matrix.group * num_groups == matrix.shape[1] and bool((sizes == matrix.group).all())


def in_groups(matrix: QuantizedMatrix) -> tuple[QuantizedMatrix, Tensor | None]:
    """Return a matrix of even groups with the columns of each together, and their numbers.

    None: they keep their order.
    """
    if matrix.column_groups is None:
        return matrix, None
    order = matrix.column_groups.argsort(stable=True)
    codes = matrix.codes.view(torch.int8)[:, order].view(matrix.codes.dtype)
    return replace(matrix, codes=codes, column_groups=None), order
