"""Rounding of inputs of which each rank has some, with one scale for all of a token's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.model.matrix.inputs import InputRounding

if TYPE_CHECKING:
    from torch import Tensor

    from shared.ranks.base import Collective


@dataclass(frozen=True, slots=True, eq=False)
class SharedRounding(InputRounding):
    """As if one rank had all inputs of a token. Every rank calls it for the same tokens."""

    collective: Collective | None = field(default=None, kw_only=True)

    def _peak(self, x: Tensor) -> Tensor:
        return self._of_all(x.abs().amax(dim=-1, keepdim=True)).amax(dim=-1, keepdim=True)

    def _least(self, x: Tensor) -> Tensor:
        return self._of_all(x.amin(dim=-1, keepdim=True)).amin(dim=-1, keepdim=True)

    def _most(self, x: Tensor) -> Tensor:
        return self._of_all(x.amax(dim=-1, keepdim=True)).amax(dim=-1, keepdim=True)

    def _of_all(self, own: Tensor) -> Tensor:
        """[..., 1] to those of all ranks, [..., number of ranks]."""
        assert self.collective is not None
        return self.collective.all_gather(own.contiguous())


def shared(own: InputRounding, collective: Collective) -> InputRounding:
    """Return the rounding of a rank's columns of a matrix."""
    if own.rule.is_static or own.rule.group is not None:
        return own
    return SharedRounding(own.rule, own.stored, own.zero, collective=collective)
