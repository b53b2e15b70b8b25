"""Norms over numbers of which each rank has some: the sums of squares are added up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from shared.model.decoder.layers import Norm
from shared.model.spec.norms import NormKind

if TYPE_CHECKING:
    from torch import Tensor

    from shared.model.spec.norms import NormSpec
    from shared.ranks.base import Collective


class WholeNorm(Norm):
    """A root-mean-square norm over all ranks' numbers of a token."""

    def __init__(
        self,
        norm: NormSpec,
        weight: nn.Parameter,
        *,
        whole_size: int,
        is_counted: bool,
        collective: Collective,
    ) -> None:
        """weight: the rank's; is_counted: no rank before it has the same numbers."""
        super().__init__()
        self.weight = weight
        self.is_offset = norm.kind is NormKind.OFFSET_RMS
        self.whole_size, self.is_counted = whole_size, is_counted
        self._eps = norm.eps
        self._collective = collective

    def forward(self, x: Tensor) -> Tensor:
        """See `Norm.forward`. x: [num_tokens, the rank's numbers]."""
        wide = x.float()
        total = wide.square().sum(-1, keepdim=True)
        if not self.is_counted:
            total.zero_()
        self._collective.all_reduce(total)
        wide = wide * torch.rsqrt(total / self.whole_size + self._eps)
        if self.is_offset:
            return (wide * (1.0 + self.weight.float())).to(x.dtype)
        return self.weight * wide.to(x.dtype)


class SharedGroups:
    """Divides rows of groups, of each of which several ranks have a part, by the root of the mean
    of their squares.
    """

    def __init__(self, num_groups: int, first: int, collective: Collective) -> None:
        """first: the first one of the rank's groups."""
        self.num_groups, self.first = num_groups, first
        self._collective = collective

    def num_ranks(self, num_own: int) -> int:
        """Return how many ranks have a part of a group, if each has of so many."""
        # Ranks have equal parts, and each group has as many ranks.
        return self._collective.size * num_own // self.num_groups

    def __call__(self, rows: Tensor, eps: float) -> Tensor:
        """rows: float32 [num_tokens, the rank's groups, the rank's numbers of each]."""
        _, own, size = rows.shape
        totals = rows.new_zeros(len(rows), self.num_groups)
        totals[:, self.first : self.first + own] = rows.square().sum(-1)
        self._collective.all_reduce(totals)
        mean = totals[:, self.first : self.first + own, None] / (size * self.num_ranks(own))
        return rows * torch.rsqrt(mean + eps)
