"""A file's bytes in memory, at an address where pages of 2 MiB can hold them.

Blocks lie anywhere in a cache, so with pages of 4 KiB most reads of one first wait for its address.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import weakref
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Of a page that one entry of the processor's tables stands for.
HUGE_BYTES = 2 << 20
_FIXED = 0x10
_NO_RESERVE = 0x4000
#: Linux 5.14's MADV_POPULATE_WRITE: as a write to every page, without a change.
_POPULATE_WRITE = 23
#: Linux 6.1's MADV_COLLAPSE: makes one page of many, also of a file in memory.
_COLLAPSE = 25
_FAILED = ctypes.c_void_p(-1).value

Bytes = ctypes.Array[ctypes.c_ubyte]


class HugeMap:
    """A whole file, mapped to be read and written.

    It is unmapped when nothing refers to it, or by `close`. The calls of the system release the
    interpreter's lock.
    """

    def __init__(self, fd: int, num_bytes: int) -> None:
        """Map. The descriptor stays the caller's, and need not stay open.

        Raises:
            OSError: it cannot be mapped.
        """
        self.num_bytes = num_bytes
        self._address = _map(fd, num_bytes)
        self._bytes: Bytes | None = (ctypes.c_ubyte * num_bytes).from_address(self._address)
        self._unmap = weakref.finalize(self._bytes, _libc().munmap, self._address, num_bytes)
        # At the end of the process threads may still use it.
        self._unmap.atexit = False
        self._arrays: weakref.WeakValueDictionary[int, NDArray[np.uint8]]
        self._arrays = weakref.WeakValueDictionary()

    @property
    def bytes(self) -> Bytes:
        """All bytes, for tensor libraries that take a writable buffer. `close` takes them away.

        Raises:
            ValueError: it is closed.
        """
        if self._bytes is None:
            raise ValueError("the mapping is closed")
        return self._bytes

    def array(self) -> NDArray[np.uint8]:
        """Return all bytes. They stay mapped as long as the array or a view of it is alive.

        Raises:
            ValueError: it is closed.
        """
        array = np.frombuffer(memoryview(self.bytes), dtype=np.uint8)
        self._arrays[id(array)] = array
        return array

    def populate(self, start: int, stop: int) -> None:
        """Back the whole pages that hold these bytes with memory, without a change of contents.

        Raises:
            OSError: the system cannot do it.
            ValueError: it is closed.
        """
        self._advise(start // mmap.PAGESIZE * mmap.PAGESIZE, stop, _POPULATE_WRITE)

    def collapse(self, start: int) -> None:
        """Make a huge page, which starts here, of small ones. Some of it must have memory.

        Raises:
            OSError: the system cannot do it, EINVAL if it never can.
            ValueError: it is closed.
        """
        self._advise(start, start + HUGE_BYTES, _COLLAPSE)

    def close(self) -> None:
        """Unmap at once, or when the last array is freed if there is one. Idempotent."""
        if self._bytes is None:
            return
        self._bytes = None
        if not self._arrays:
            self._unmap()

    def _advise(self, start: int, stop: int, advice: int) -> None:
        mapped = ctypes.addressof(self.bytes)
        if _libc().madvise(mapped + start, stop - start, advice):
            raise _last_error()


def _map(fd: int, num_bytes: int) -> int:
    """Return an address, a multiple of a huge page."""
    libc = _libc()
    # Room from which to take an address.
    nothing = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    room: int = libc.mmap(None, num_bytes + HUGE_BYTES, 0, nothing, -1, 0)
    if room == _FAILED:
        raise _last_error()
    room_end = room + num_bytes + HUGE_BYTES
    address = -(-room // HUGE_BYTES) * HUGE_BYTES
    end = address + -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    access = mmap.PROT_READ | mmap.PROT_WRITE
    if libc.mmap(address, num_bytes, access, mmap.MAP_SHARED | _FIXED, fd, 0) == _FAILED:
        error = _last_error()
        libc.munmap(room, room_end - room)
        raise error
    if address > room:
        libc.munmap(room, address - room)
    if room_end > end:
        libc.munmap(end, room_end - end)
    return address


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    size, address = ctypes.c_size_t, ctypes.c_void_p
    libc.mmap.restype = address
    libc.mmap.argtypes = (address, size, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
    libc.munmap.argtypes = (address, size)
    libc.madvise.argtypes = (address, size, ctypes.c_int)
    return libc
