"""The cores of this host that its workers lend to each other."""

from __future__ import annotations

import os
from ctypes import byref, c_int
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernels.native.cores import CoresJoin
from kernels.native.library import load_library
from kernels.native.structures import CoreUse
from shared.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

_REASONS = {
    CoresJoin.FULL: "it has no place for one more worker, or for its cores; give another path",
    CoresJoin.FOREIGN: "it must be a file of this user that no other may write; give another path",
    CoresJoin.FORMAT: "another version of Baton, or something else, has written it; give another "
    "path, or remove it when no worker uses it",
    CoresJoin.BUSY: "another worker has been joining it for 5 s; is that one stopped?",
}


@dataclass(frozen=True, slots=True)
class CoreCounts:
    """What a worker has of the cores of its host."""

    #: Its own.
    own: int
    #: Of these, used by others now.
    lent: int
    #: Of others, used by this worker now.
    borrowed: int
    #: Core seconds for which it has used those of others.
    borrowed_s: float
    #: Times that an owner took a core back while it was borrowed here.
    recalled: int


class CoreLease:
    """A worker's place in the file of cores, until `close`. The file is made if there is none.

    `close` may be called in any thread when no step runs; `counts` in any.
    """

    def __init__(self, path: Path, num_own: int, num_usable: int) -> None:
        """`num_own`: the cores that this worker brings; `num_usable`: those that it may use, its
        own among them.

        Cores without an owner are lent as long as there are no more cores in all than the member
        that may use the most has.

        Raises:
            NativeUnavailableError: the library cannot be compiled here.
            ConfigError: the file cannot be used; says why.
        """
        self._library = load_library()
        joined, error = c_int(), c_int()
        #: The library's; valid as long as this object.
        self.handle: int | None = self._library.baton_cores_join(
            os.fsencode(path), num_own, num_usable, byref(joined), byref(error)
        )
        if not self.handle:
            reason = _REASONS.get(CoresJoin(joined.value), os.strerror(error.value))
            raise ConfigError(f"--core-lease {path}: {reason}")

    def counts(self) -> CoreCounts:
        """Return the present numbers; without cores after `close`."""
        use = CoreUse()
        self._library.baton_cores_use(self.handle, byref(use))
        return CoreCounts(use.own, use.lent, use.borrowed, use.borrowed_ns / 1e9, use.recalled)

    def close(self) -> None:
        """Give all cores back, and leave. The last worker removes the file. Idempotent."""
        self._library.baton_cores_leave(self.handle)

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self._library.baton_cores_delete(self.handle)
