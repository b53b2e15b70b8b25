"""The rows of a product in the order of their groups, without a look at the device's numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor


class RowGroups(NamedTuple):
    """Rows, of which each belongs to one group."""

    #: int64 [num_rows]: the numbers of the rows, those of the first group first, each ascending.
    order: Tensor
    #: int64 [num_groups]: where each group ends in `order`.
    ends: Tensor


def group_rows(group_of: Tensor, num_groups: int) -> RowGroups:
    """Return the rows by group. group_of: int64 [num_rows], each less than `num_groups`.

    The host waits for nothing, and shapes depend on those of the arguments alone.
    """
    ordered, order = group_of.sort(stable=True)
    numbers = torch.arange(num_groups, device=group_of.device)
    return RowGroups(order, torch.searchsorted(ordered, numbers, right=True))
