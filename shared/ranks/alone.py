"""The collective operations of a group of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.ranks.checks import require_source, require_summed

if TYPE_CHECKING:
    from torch import Tensor


class Alone:
    """A `Collective` of one rank: sums, and what is gathered, are what it has."""

    rank = 0
    size = 1

    def all_reduce(self, tensor: Tensor) -> None:
        """See `Collective`."""
        require_summed(tensor)

    def all_gather(self, tensor: Tensor, dim: int = -1) -> Tensor:
        """See `Collective`. A copy: the result belongs to the caller."""
        return tensor.clone()

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """See `Collective`."""
        require_source(source, self.size)

    def barrier(self) -> None:
        """See `Collective`."""

    def close(self) -> None:
        """See `Collective`."""
