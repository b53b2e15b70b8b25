"""The four calls of the CUDA driver that share device memory between processes.

PyTorch wraps them only together with its own bookkeeping of tensors that travel by pickle; its
`cudart()` has none of them. The driver's library has one name for all versions of CUDA.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64
from typing import Protocol

from shared.errors import ConfigError

HANDLE_BYTES = 64
_LIBRARY = "libcuda.so.1"
#: The only flag of cuIpcOpenMemHandle, and it must be given.
_LAZY_ENABLE_PEER_ACCESS = 1


class _Handle(ctypes.Structure):
    """CUipcMemHandle, which is passed by value."""

    _fields_ = (("reserved", c_ubyte * HANDLE_BYTES),)


_SIGNATURES = {
    "cuMemGetAddressRange_v2": (POINTER(c_uint64), POINTER(c_size_t), c_uint64),
    "cuIpcGetMemHandle": (POINTER(_Handle), c_uint64),
    "cuIpcOpenMemHandle_v2": (POINTER(c_uint64), _Handle, c_uint),
    "cuIpcCloseMemHandle": (c_uint64,),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
}


class CudaIpcError(Exception):
    """The driver refused."""


class IpcDriver(Protocol):
    """What sharing device memory takes. The calling thread must have a current context."""

    def allocation(self, pointer: int) -> tuple[int, int]:
        """Where the allocation around `pointer` starts, and its bytes. Raises CudaIpcError."""
        ...

    def export(self, pointer: int) -> bytes:
        """The handle, of `HANDLE_BYTES`, of the allocation around `pointer`.

        Raises CudaIpcError: CUDA does if PyTorch allocates in expandable segments.
        """
        ...

    def open(self, handle: bytes) -> int:
        """Map another process's allocation; where it starts. Each needs a `close`.

        Raises CudaIpcError.
        """
        ...

    def close(self, pointer: int) -> None:
        """Undo `open`. Raises CudaIpcError."""
        ...


class CudaIpc:
    """The `IpcDriver` of CUDA."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = c_int, arguments

    @classmethod
    def load(cls) -> CudaIpc:
        """Raises ConfigError if there is no driver."""
        try:
            return cls(ctypes.CDLL(_LIBRARY))
        except (OSError, AttributeError) as error:
            raise ConfigError(f"connector cuda_ipc needs the CUDA driver: {error}") from error

    def allocation(self, pointer: int) -> tuple[int, int]:
        """See `IpcDriver.allocation`."""
        base, size = c_uint64(), c_size_t()
        self._call("cuMemGetAddressRange_v2", byref(base), byref(size), pointer)
        return base.value, size.value

    def export(self, pointer: int) -> bytes:
        """See `IpcDriver.export`."""
        handle = _Handle()
        self._call("cuIpcGetMemHandle", byref(handle), pointer)
        return bytes(handle.reserved)

    def open(self, handle: bytes) -> int:
        """See `IpcDriver.open`. The driver counts: a handle opened twice is closed twice."""
        pointer = c_uint64()
        own = _Handle((c_ubyte * HANDLE_BYTES).from_buffer_copy(handle))
        self._call("cuIpcOpenMemHandle_v2", byref(pointer), own, _LAZY_ENABLE_PEER_ACCESS)
        return pointer.value

    def close(self, pointer: int) -> None:
        """See `IpcDriver.close`."""
        self._call("cuIpcCloseMemHandle", pointer)

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            text = c_char_p()
            self._library.cuGetErrorString(status, byref(text))
            raise CudaIpcError(f"{name}: {(text.value or b'unknown error').decode()} ({status})")
