"""Memory for one weight after the other."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class Scratch:
    """Memory that is used again, so that the system need not give, and clear, new pages."""

    def __init__(self) -> None:
        #: By address of those that are taken.
        self._taken: dict[int, Tensor] = {}
        self._free: list[Tensor] = []

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return a tensor of any numbers, the caller's until it is given back."""
        size = prod(shape) * dtype.itemsize
        self._free.sort(key=lambda each: each.nbytes)
        place = next((n for n, each in enumerate(self._free) if each.nbytes >= size), None)
        if place is None and self._free:
            self._free.pop()  # a larger one takes its place
        found = torch.empty(size, dtype=torch.uint8) if place is None else self._free.pop(place)
        self._taken[found.data_ptr()] = found
        return found[:size].view(dtype).view(*shape)

    def give_back(self, tensor: Tensor) -> None:
        """Take back what `take` returned; other tensors are left alone."""
        own = self._taken.pop(tensor.data_ptr(), None)
        if own is not None:
            self._free.append(own)
