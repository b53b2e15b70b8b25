"""What the parts of a group in shared memory have in common: joining, waiting, and its end."""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import TYPE_CHECKING

from kernels.native.library import load_library
from kernels.native.ranks import Act, Join, Reason
from kernels.native.structures import CollectiveShape, Failure, RingShape
from shared.errors import ConfigError, RankError

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Seq

#: A rank that is this late is lost.
TIMEOUT_S = 30.0
#: Spinning sees a peer within a microsecond; waking a thread that sleeps takes some 50.
SPIN_S = 200e-6


def default_spin_s(size: int, wanted_s: float = SPIN_S) -> float:
    """Return how long ranks of a host spin before they sleep: not at all without a core each."""
    return wanted_s if len(os.sched_getaffinity(0)) >= size else 0.0


class Membership:
    """One rank's native object, with the words for what breaks it.

    Not for two threads at a time: `close` must not be called while another thread is in a call.

    Joins the memory behind `fd`, which stays the caller's.

    Raises:
        ConfigError: another process or thread is this rank, or the memory is not of such a group.
        NativeUnavailableError: see `load_library`.
    """

    def __init__(
        self,
        kind: str,
        fd: int,
        rank: int,
        shape: CollectiveShape | RingShape,
        *,
        timeout_s: float,
        spin_s: float,
        names: Seq[int] | None = None,
    ) -> None:
        """Join. `names`: by rank, the number that errors give it; None: its own."""
        if not 0 <= rank < shape.size:
            raise ConfigError(f"rank {rank} is none of a group of {shape.size}")
        self._names = range(shape.size) if names is None else names
        library = load_library()
        join = ctypes.c_int()
        limits = round(timeout_s * 1e9), round(spin_s * 1e9)
        make = getattr(library, f"baton_{kind}_new")
        self.native: int | None = make(fd, rank, shape, *limits, join)
        if self.native is None:
            raise ConfigError(f"rank {rank} cannot join its {kind}: {_WHY[Join(join.value)]}")
        self._read_failure: Callable[..., None] = getattr(library, f"baton_{kind}_failure")
        self._delete = weakref.finalize(self, getattr(library, f"baton_{kind}_delete"), self.native)
        # At the end of the process the kernel frees all, and a thread may still be in a call.
        self._delete.atexit = False
        self._rank = rank
        self._timeout_s = timeout_s

    def handle(self) -> int:
        """Return the native object.

        Raises:
            RankError: this rank has left.
        """
        if self.native is None:
            own = self._names[self._rank]
            raise RankError(f"rank {own} has left the group", rank=own)
        return self.native

    def error(self) -> RankError:
        """Return why the group is broken."""
        failure = Failure()
        self._read_failure(self.handle(), failure)
        words = _words(failure, self._timeout_s, self._names)
        return RankError(words, rank=self._names[failure.rank])

    def give_up(self, rank: int, why: str) -> RankError:
        """Leave because of a rank that the native object does not miss; return the error."""
        self.close()
        name, own = self._names[rank], self._names[self._rank]
        return RankError(f"rank {name} {why}: rank {own} waited for it in receive", rank=name)

    def close(self) -> None:
        """Leave. Idempotent."""
        self.native = None
        self._delete()


_WHY = {
    Join.DONE: "",
    Join.TAKEN: "another process or thread is this rank, or was it",
    Join.SIZE: "the memory has another size; all ranks must have the same settings",
    Join.SYSTEM: "the system refused to open, lock or map the memory",
}


def _words(failure: Failure, timeout_s: float, names: Seq[int]) -> str:
    rank, found_by = names[failure.rank], names[failure.found_by]
    act = Act(failure.act).name.lower()
    waited = f"rank {found_by} waited for it in {act}"
    match Reason(failure.reason):
        case Reason.LATE:
            return f"rank {rank} did not come within {timeout_s:g} s: {waited}"
        case Reason.ABSENT:
            return f"rank {rank} did not join the group within {timeout_s:g} s: {waited}"
        case Reason.DEAD:
            return f"the process of rank {rank} died: {waited}"
        case Reason.LEFT:
            return f"rank {rank} left the group: {waited}"
        case _:
            other = Act(failure.other).name.lower()
            terms = f"{other} of another size or kind" if other == act else other
            return f"rank {rank} is in {terms} while rank {found_by} is in {act}"
