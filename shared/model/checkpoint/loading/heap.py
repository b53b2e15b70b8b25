"""The C library's source of large blocks of memory during the loading of weights."""

from __future__ import annotations

import ctypes
import functools
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Of glibc's malloc.h: M_TRIM_THRESHOLD and M_MMAP_THRESHOLD.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LOADING_BYTES = 1 << 20
#: Maximum to which glibc raises the threshold itself.
_USUAL_BYTES = 32 << 20
_LOADING_TRIM, _USUAL_TRIM = 128 << 20, 64 << 20
#: Thresholds of the contexts that are open, the innermost last: C cannot be asked for its own.
_apart_from = [_USUAL_BYTES]


@contextmanager
def blocks_used_again() -> Iterator[None]:
    """Keep freed memory for the next blocks: the system need not give, and clear, new pages.

    For loading that leaves no large block behind. Does nothing without glibc.
    """
    _set(_TRIM_THRESHOLD, _LOADING_TRIM)
    try:
        with _blocks_apart_from(_USUAL_BYTES):
            yield
    finally:
        _set(_TRIM_THRESHOLD, _USUAL_TRIM)
        give_back_free()


@contextmanager
def large_blocks_apart() -> Iterator[None]:
    """Return blocks of 1 MiB and more to the system as soon as they are freed.

    Otherwise the converted form of a weight is put where the weight was, the next weight does not
    fit there any more, and the heap grows by all of them: for 309 MiB of int8 weights of PyTorch
    the peak was 2,054 MiB instead of 450. Does nothing without glibc.
    """
    with _blocks_apart_from(_LOADING_BYTES):
        yield


@contextmanager
def _blocks_apart_from(num_bytes: int) -> Iterator[None]:
    """Take blocks of this size and more from the system; afterwards, those of the size before."""
    before = _apart_from[-1]
    _apart_from.append(num_bytes)
    _set(_MMAP_THRESHOLD, num_bytes)
    try:
        yield
    finally:
        _apart_from.pop()
        _set(_MMAP_THRESHOLD, before)


def give_back_free() -> None:
    """Return freed memory from the C library to the system. Does nothing without glibc."""
    with suppress(AttributeError, OSError):
        _libc().malloc_trim(0)


def _set(what: int, num_bytes: int) -> None:
    with suppress(AttributeError, OSError):
        _libc().mallopt(what, num_bytes)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
