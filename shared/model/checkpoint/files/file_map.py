"""The bytes of a file in memory."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
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

    def holds(self, address: int) -> bool:
        """Return whether what is at an address is a view of the file."""
        begin = np.frombuffer(self._pages, np.uint8).ctypes.data
        return bool(begin <= address < begin + len(self._pages))


def drop_pages(address: int, num_bytes: int) -> None:
    """Take whole pages of a mapped file out of this process's memory; a view reads them again.

    They stay in the system's cache. Of other memory the numbers are lost.
    """
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (address + num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if first < end:
        with suppress(AttributeError, OSError):
            madvise = ctypes.CDLL(None).madvise
            madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), mmap.MADV_DONTNEED)
