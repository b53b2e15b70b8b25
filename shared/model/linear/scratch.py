"""Memory for one weight after the other."""

from __future__ import annotations

from math import prod
from threading import Lock
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class Scratch:
    """Memory that is used again, so that the system need not give, and clear, new pages."""

    def __init__(self) -> None:
        #: Linears give back in the thread that packs.
        self._lock = Lock()
        #: By address of those that are taken.
        self._taken: dict[int, Tensor] = {}
        self._free: list[Tensor] = []

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return a tensor of any numbers, the caller's until it is given back."""
        size = prod(shape) * dtype.itemsize
        with self._lock:
            found = self._find(size)
            self._taken[found.data_ptr()] = found
        return found[:size].view(dtype).view(*shape)

    def _find(self, size: int) -> Tensor:
        self._free.sort(key=lambda each: each.nbytes)
        for place, each in enumerate(self._free):
            if each.nbytes >= size:
                return self._free.pop(place)
        if self._free:
            self._free.pop()  # a larger one takes its place
        return torch.empty(size, dtype=torch.uint8)

    def give_back(self, tensor: Tensor) -> None:
        """Take back what `take` returned; other tensors are left alone."""
        with self._lock:
            own = self._taken.pop(tensor.data_ptr(), None)
            if own is not None:
                self._free.append(own)
