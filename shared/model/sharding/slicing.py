"""A rank's slices of stored tensors. Of a mapped file only their pages are read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from shared.model.sharding.inputs import shared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shared.model.matrix.blocks import AnyMatrix
    from shared.model.sharding.cut import Cut
    from shared.model.sharding.shards import Shards
    from shared.model.weight_map import Stored, WeightPart
    from shared.ranks.base import Collective


@dataclass(frozen=True, slots=True)
class Slices:
    """What a rank reads of the tensors of a checkpoint."""

    shards: Shards
    collective: Collective

    def cut(self, part: WeightPart) -> Cut:
        """Return what the rank reads of a part."""
        return self.shards.cut(part)

    def of_tensor(self, tensor: Tensor, stored: Stored, cut: Cut, num_dims: int) -> Tensor:
        """Return a part's rows and columns of a stored tensor, in the part's dimensions."""
        if stored.is_transposed:
            tensor = tensor.T
        if cut.columns is not None:
            tensor = tensor[:, cut.columns.start : cut.columns.stop]
        if tensor.ndim > num_dims:
            tensor = tensor.flatten()
        return _rows(tensor, stored.rows, cut)

    def of_matrix(self, matrix: AnyMatrix, stored: Stored, cut: Cut) -> AnyMatrix:
        """Return the same of a matrix of few bits, whose rows are outputs."""
        rows = cut.row_numbers(stored.rows)
        own = matrix if rows is None else matrix.take(rows)
        if cut.columns is None:
            return own
        own = own.take_columns(cut.columns)
        if own.inputs is None or self.collective.size == 1:
            return own
        return replace(own, inputs=shared(own.inputs, self.collective))


def _rows(tensor: Tensor, stored: Sequence[int] | None, cut: Cut) -> Tensor:
    if stored is None and cut.rows is not None:
        parts = [tensor[own.start : own.stop] for own in cut.rows]
        return parts[0] if len(parts) == 1 else torch.cat(parts)
    numbers = cut.row_numbers(stored)
    return tensor if numbers is None else tensor[torch.tensor(numbers)]
