"""The bytes of a file in memory. Their pages leave it with the last view of them."""

from __future__ import annotations

import ctypes
import functools
import mmap
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

#: Pages of smaller tensors stay until the map ends: to follow a view costs more than they do.
_FOLLOWED_BYTES: Final = 1 << 16


class FileMap:
    """Pages of a file, read when they are first touched; the map ends with the last view of it."""

    def __init__(self, path: Path) -> None:
        # A page that is written is copied first: PyTorch warns of memory that cannot be written.
        with path.open("rb") as file:
            self._pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def view(self, start: int, num_bytes: int) -> Bytes:
        """Return some of the bytes, which are only read."""
        return _dropped_last(np.frombuffer(self._pages, np.uint8, num_bytes, start))


def dropped_last(tensor: Tensor) -> Tensor:
    """Return a view of a tensor in a mapped file, whose pages are dropped with its last view."""
    # Only here, so that headers are checked before torch is imported.
    import torch  # noqa: PLC0415

    if tensor.nbytes < _FOLLOWED_BYTES:
        return tensor
    raw = _dropped_last(tensor.flatten().view(torch.uint8).numpy())
    return torch.from_numpy(raw).view(tensor.dtype).view(tensor.shape)


def _dropped_last(view: Bytes) -> Bytes:
    # Tensors and arrays of the same bytes refer to this one.
    if view.nbytes >= _FOLLOWED_BYTES:
        weakref.finalize(view, _drop_pages, view.ctypes.data, view.nbytes).atexit = False
    return view


def _drop_pages(address: int, num_bytes: int) -> None:
    """Take whole pages of a mapped file out of this process's memory; a view reads them again.

    They stay in the system's cache. What was written to them is lost.
    """
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (address + num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if first < end:
        with suppress(AttributeError, OSError):
            length = ctypes.c_size_t(end - first)
            _libc().madvise(ctypes.c_void_p(first), length, mmap.MADV_DONTNEED)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
