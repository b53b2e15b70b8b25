"""The bytes of a file in memory."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path


class FileMap:
    """Pages of a file, read when they are first touched; the map ends with the last view of it."""

    def __init__(self, path: Path) -> None:
        # A page that is written is copied first: PyTorch warns of memory that cannot be written.
        with path.open("rb") as file:
            self._pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def view(self, start: int, num_bytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return some of the bytes."""
        return np.frombuffer(self._pages, np.uint8, num_bytes, start)
