"""A file's bytes in memory, where pages of 2 MiB can hold them.

Blocks lie anywhere in a cache, so with pages of 4 KiB most reads of one first wait for its address.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import weakref

#: Of a page that one entry of the processor's tables stands for.
HUGE_BYTES = 2 << 20
_FIXED = 0x10
_NO_RESERVE = 0x4000
#: Linux 5.14's MADV_POPULATE_WRITE: as a write to every page, without a change.
_POPULATE_WRITE = 23
#: Linux 6.1's MADV_COLLAPSE: makes one page of many, also of a file in memory.
_COLLAPSE = 25

Bytes = ctypes.Array[ctypes.c_ubyte]


def map_file(fd: int, num_bytes: int) -> Bytes:
    """Map a whole file, to read and to write; it is unmapped when nothing refers to the result.

    Raises:
        OSError: it cannot be mapped.
    """
    libc = _libc()
    # Room from which to take an address that is a multiple of a huge page.
    nothing = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    room = libc.mmap(None, num_bytes + HUGE_BYTES, 0, nothing, -1, 0)
    _check(room)
    address = -(-room // HUGE_BYTES) * HUGE_BYTES
    end = address + -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    access = mmap.PROT_READ | mmap.PROT_WRITE
    try:
        _check(libc.mmap(address, num_bytes, access, mmap.MAP_SHARED | _FIXED, fd, 0))
    except OSError:
        libc.munmap(room, num_bytes + HUGE_BYTES)
        raise
    if address > room:
        libc.munmap(room, address - room)
    libc.munmap(end, room + num_bytes + HUGE_BYTES - end)
    mapped: Bytes = (ctypes.c_ubyte * num_bytes).from_address(address)
    # At the end of the process threads may still use it.
    weakref.finalize(mapped, libc.munmap, address, num_bytes).atexit = False
    return mapped


def populate(address: int, num_bytes: int) -> None:
    """Back these whole pages with memory, as a write to each would, without a change.

    Raises:
        OSError: the system cannot do it.
    """
    if _libc().madvise(address, num_bytes, _POPULATE_WRITE):
        raise OSError(ctypes.get_errno(), "MADV_POPULATE_WRITE")


def collapse(address: int, num_bytes: int) -> bool:
    """Make huge pages of whole ones, each of which has some memory; return whether all are."""
    did: int = _libc().madvise(address, num_bytes, _COLLAPSE)
    return did == 0


def _check(address: int | None) -> None:
    if address is None or address == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    size, address = ctypes.c_size_t, ctypes.c_void_p
    libc.mmap.restype = address
    libc.mmap.argtypes = (address, size, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
    libc.munmap.argtypes = (address, size)
    libc.madvise.argtypes = (address, size, ctypes.c_int)
    return libc
