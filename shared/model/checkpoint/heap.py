"""Where the C library takes large blocks of memory from while weights are loaded."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of glibc's malloc.h
_LOADING_BYTES = 1 << 20
#: Up to where glibc lets the threshold grow by itself.
_USUAL_BYTES = 32 << 20


@contextmanager
def large_blocks_apart() -> Iterator[None]:
    """Give blocks of 1 MiB and more back to the system as soon as they are freed.

    Otherwise what is kept of a weight is put where the weight was, the next weight does not fit
    there any more, and the heap grows by all of them: for 309 MiB of int8 weights of PyTorch the
    peak was 2,054 MiB instead of 450. Without glibc nothing is done.
    """
    _set(_LOADING_BYTES)
    try:
        yield
    finally:
        _set(_USUAL_BYTES)


def give_back_free() -> None:
    """Give the system back what the C library keeps of freed memory. Nothing without glibc."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _set(num_bytes: int) -> None:
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, num_bytes)
