"""The C library's source of large blocks of memory during the loading of weights."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of glibc's malloc.h
_LOADING_BYTES = 1 << 20
#: Maximum to which glibc raises the threshold itself.
_USUAL_BYTES = 32 << 20


@contextmanager
def large_blocks_apart() -> Iterator[None]:
    """Return blocks of 1 MiB and more to the system as soon as they are freed.

    Otherwise the converted form of a weight is put where the weight was, the next weight does not
    fit there any more, and the heap grows by all of them: for 309 MiB of int8 weights of PyTorch
    the peak was 2,054 MiB instead of 450. Does nothing without glibc.
    """
    _set(_LOADING_BYTES)
    try:
        yield
    finally:
        _set(_USUAL_BYTES)


def give_back_free() -> None:
    """Return freed memory from the C library to the system. Does nothing without glibc."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _set(num_bytes: int) -> None:
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, num_bytes)
