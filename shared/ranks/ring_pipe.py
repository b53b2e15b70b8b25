"""Tensors from a stage of a pipeline to the next one on one host, by rings in shared memory."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernels.native.library import load_library
from kernels.native.ranks import Waited
from kernels.native.structures import RingShape
from shared.errors import InternalError
from shared.ranks.group_file import GroupFile
from shared.ranks.membership import TIMEOUT_S, Membership, default_spin_s

if TYPE_CHECKING:
    from torch import Tensor

#: Rows of a step in which some sequences decode. Longer tensors take several slots.
_SLOT_BYTES = 64 << 10
#: A power of two. So much, 32 MiB, a stage may be ahead of the next one; memory that was never used
#: takes no room.
_NUM_SLOTS = 512
#: A rank that waits comes back to Python this often, for signals.
_PATIENCE_NS = 500_000_000
_SENDER, _RECEIVER = 0, 1
_SHAPE = RingShape(2, _NUM_SLOTS, _SLOT_BYTES)


@dataclass(frozen=True, slots=True)
class PipeEnd:
    """Where a rank joins the ring to one of its peers."""

    #: Of a `pipe_file`.
    fd: int
    #: The numbers of the sending and the receiving rank in their worker, for errors.
    ranks: tuple[int, int]


def pipe_file() -> GroupFile:
    """Return memory for what one rank sends to one other."""
    return GroupFile(load_library().baton_ring_bytes(_SHAPE), "baton-pipe")


class RingPipe:
    """A `Pipe` of processes or threads on one host.

    Nothing is copied but into the shared memory and out of it. Calls release the GIL.

    Raises:
        ConfigError: see `Membership`.
    """

    def __init__(
        self,
        before: PipeEnd | None,
        behind: PipeEnd | None,
        *,
        timeout_s: float = TIMEOUT_S,
        spin_s: float | None = None,
    ) -> None:
        """Join the stage `before`, if there is one, and that `behind`."""

        def join(end: PipeEnd | None, place: int) -> Membership | None:
            if end is None:
                return None
            return Membership(
                "ring",
                end.fd,
                place,
                _SHAPE,
                timeout_s=timeout_s,
                spin_s=default_spin_s(2) if spin_s is None else spin_s,
                names=end.ranks,
            )

        library = load_library()
        self._send, self._receive = library.baton_ring_send, library.baton_ring_receive
        self._timeout_s = timeout_s
        self._before, self._behind = join(before, _RECEIVER), join(behind, _SENDER)
        self._num_bytes = ctypes.c_size_t()

    def send(self, tensor: Tensor) -> None:
        """See `Pipe`."""
        member = _joined(self._behind)
        own = tensor.contiguous()
        if self._send(member.handle(), own.data_ptr(), own.nbytes):
            raise member.error()

    def receive(self, tensor: Tensor) -> None:
        """See `Pipe`. The tensor is contiguous."""
        member = _joined(self._before)
        room, until_s = tensor.nbytes, time.monotonic() + self._timeout_s
        while True:
            handle = member.handle()
            waited = self._receive(handle, tensor.data_ptr(), room, _PATIENCE_NS, self._num_bytes)
            if waited == Waited.BROKEN:
                raise member.error()
            if waited == Waited.REACHED:
                break
            if time.monotonic() > until_s:
                raise member.give_up(_SENDER, f"did not come within {self._timeout_s:g} s")
        if self._num_bytes.value != room:
            raise member.give_up(_SENDER, f"sent {self._num_bytes.value} bytes in place of {room}")

    def close(self) -> None:
        """See `Pipe`."""
        for member in (self._before, self._behind):
            if member is not None:
                member.close()


def _joined(member: Membership | None) -> Membership:
    if member is None:
        raise InternalError("the pipe of a first or last stage has one end")
    return member
