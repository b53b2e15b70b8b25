"""Products of rows with the weight of their group, in PyTorch: one group after the other."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from torch.nn.functional import linear

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.grouped_matmul.groups import RowGroups


def grouped_matmul(x: Tensor, weight: Tensor, groups: RowGroups, bias: Tensor | None) -> Tensor:
    """See `kernels.grouped_matmul.grouped_matmul`."""
    num_rows = len(groups.order)
    out = x.new_empty((num_rows, weight.shape[1]))
    repeats = num_rows // max(1, len(x))
    for number, (start, end) in enumerate(pairwise((0, *groups.ends.tolist()))):
        if start < end:
            rows = groups.order[start:end]
            own = None if bias is None else bias[number]
            out[rows] = linear(x[rows // repeats], weight[number], own)
    return out
