"""The bytes of a worker's KV blocks: memory that a peer on the same host can map."""

from __future__ import annotations

import fcntl
import os
import weakref
from typing import TYPE_CHECKING

from shared.errors import ConfigError
from shared.kv.huge_map import HugeMap

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from shared.kv.huge_map import Bytes
    from shared.kv.layout import KVLayout

#: A mapped file must never become shorter: access beyond its end would be a SIGBUS.
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class KVMemory:
    """Zeroed, page-aligned memory for `num_blocks` blocks.

    It is an anonymous file: its descriptor can be passed to another process (the `shm` connector
    does that), its size is sealed, it has no name, and the end of the last process that maps it
    frees it.

    Its owner calls `close`; arrays of `blocks` must be freed before. Without `close` the memory is
    freed when nothing refers to it.
    """

    def __init__(self, layout: KVLayout, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ConfigError(f"num_blocks must be at least 1, not {num_blocks}")
        num_bytes = num_blocks * layout.block_bytes
        fd = os.memfd_create("baton-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, num_bytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
        except OSError as error:
            os.close(fd)
            raise ConfigError(f"cannot make {num_bytes} bytes of KV memory: {error}") from error
        self._adopt(layout, num_blocks, fd)

    @classmethod
    def attached(cls, layout: KVLayout, num_blocks: int, fd: int) -> KVMemory:
        """Return the memory that another process has made, by its descriptor, which it takes.

        Raises:
            ConfigError: it cannot be mapped, or has another size.
        """
        found = cls.__new__(cls)
        if os.fstat(fd).st_size != num_blocks * layout.block_bytes:
            os.close(fd)
            raise ConfigError(f"the KV memory is not that of {num_blocks} blocks")
        found._adopt(layout, num_blocks, fd)
        return found

    def _adopt(self, layout: KVLayout, num_blocks: int, fd: int) -> None:
        """Map a file, which is this object's from now on."""
        self.layout = layout
        self.num_blocks = num_blocks
        self.num_bytes = num_blocks * layout.block_bytes
        self.fd = fd
        self._close_fd = weakref.finalize(self, os.close, fd)
        try:
            self.mapping = HugeMap(fd, self.num_bytes)
        except OSError as error:
            self._close_fd()
            raise ConfigError(f"cannot map {self.num_bytes} bytes of KV memory: {error}") from error

    @property
    def blocks(self) -> NDArray[np.uint8]:
        """All bytes as [num_blocks, block_bytes]; writes go to the memory itself."""
        return self.mapping.array().reshape(self.num_blocks, self.layout.block_bytes)

    @property
    def buffer(self) -> Bytes:
        """All bytes, for tensor libraries that take a writable buffer."""
        return self.mapping.bytes

    def close(self) -> None:
        """Free the memory. Idempotent."""
        if self.fd < 0:
            return
        self._close_fd()
        self.fd = -1
        self.mapping.close()
