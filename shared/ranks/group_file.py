"""The memory that the ranks of one host share."""

from __future__ import annotations

import fcntl
import os
import weakref

from shared.errors import ConfigError

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class GroupFile:
    """Zeroed memory without a name, which ranks join by its descriptor.

    Pass `fd` to the other processes (`pass_fds` of `subprocess`); threads use it as it is. It may
    be closed when all have joined. The end of the last process that has it frees the memory,
    however it ends: nothing is left in /dev/shm.
    """

    def __init__(self, num_bytes: int, name: str) -> None:
        self.fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._close = weakref.finalize(self, os.close, self.fd)
        try:
            os.ftruncate(self.fd, num_bytes)
            # A mapped file must never become shorter: access beyond its end would be a SIGBUS.
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
        except OSError as error:
            self._close()
            raise ConfigError(f"cannot make {num_bytes} bytes of shared memory: {error}") from error

    def close(self) -> None:
        """Close the descriptor; those who joined keep the memory. Idempotent."""
        self._close()
