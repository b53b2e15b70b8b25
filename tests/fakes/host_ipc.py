"""An `IpcDriver` over shared memory of the host, which really crosses processes."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import TYPE_CHECKING

from shared.engine.memory.cuda_ipc import HANDLE_BYTES, CudaIpcError

if TYPE_CHECKING:
    from shared.kv.memory import KVMemory


class HostIpc:
    """Knows the allocations that it has opened, and one of this process."""

    def __init__(self, memory: KVMemory) -> None:
        self._memory = memory
        self.opened: dict[int, mmap.mmap] = {}

    def allocation(self, pointer: int) -> tuple[int, int]:
        for base, memory in self.opened.items():
            if base <= pointer < base + len(memory):
                return base, len(memory)
        if self._memory.fd < 0:
            raise CudaIpcError("it is freed")
        base = _address(self._memory.buffer)
        if not base <= pointer < base + self._memory.num_bytes:
            raise CudaIpcError("not an address of this memory")
        return base, self._memory.num_bytes

    def export(self, pointer: int) -> bytes:
        self.allocation(pointer)
        return f"/proc/{os.getpid()}/fd/{self._memory.fd}".encode().ljust(HANDLE_BYTES, b"\0")

    def open(self, handle: bytes) -> int:
        try:
            # Writable only because an address is not to be had otherwise; nobody writes.
            fd = os.open(handle.rstrip(b"\0"), os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise CudaIpcError(str(error)) from error
        try:
            memory = mmap.mmap(fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)
        base = _address(memory)
        self.opened[base] = memory
        return base

    def close(self, pointer: int) -> None:
        self.opened.pop(pointer).close()


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))
