"""Memory for results that callers own, without new pages for every result."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

#: Number of pieces of memory that are kept: for a step's result and one computed beside it.
_NUM_KEPT = 2


class OwnedRows:
    """Returns rows of float32 that belong to the caller.

    The rows stay unchanged while any tensor or view refers to them, whatever is taken later. Only
    then is their memory used again: new pages cost more than the writes to them. Not for two
    threads at a time; the tensors may be freed in any thread.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._kept: list[_Memory] = []

    def take(self, count: int) -> Tensor:
        """Return rows [count, width] with any content."""
        free = [memory for memory in self._kept if memory.is_free]
        for memory in free:
            if memory.num_rows >= count:
                return memory.lend(count)
        if free:
            self._kept.remove(free[0])
        elif len(self._kept) == _NUM_KEPT:
            return torch.empty(count, self._width, dtype=torch.float32)
        self._kept.append(_Memory(count, self._width))
        return self._kept[-1].lend(count)


class _Memory:
    """One piece of memory, and whether its last rows are still referred to."""

    def __init__(self, num_rows: int, width: int) -> None:
        # Made by torch, which aligns it.
        self._rows: NDArray[np.float32] = torch.empty(num_rows, width, dtype=torch.float32).numpy()
        self._lent: weakref.ref[NDArray[Any]] | None = None
        self.num_rows = num_rows

    @property
    def is_free(self) -> bool:
        """Whether no tensor refers to it."""
        return self._lent is None or self._lent() is None

    def lend(self, count: int) -> Tensor:
        """Return the first `count` rows."""
        # A tensor keeps its source array alive, and so do all of its views.
        rows = self._rows[:count]
        self._lent = weakref.ref(rows)
        return torch.from_numpy(rows)
