"""Messages of rank 0 to its followers on one host, through a bounded ring in shared memory."""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING

from kernels.native.library import load_library
from kernels.native.ranks import Waited
from kernels.native.structures import RingShape
from shared.errors import ConfigError
from shared.ranks.group_file import GroupFile
from shared.ranks.membership import TIMEOUT_S, Membership, default_spin_s

if TYPE_CHECKING:
    from collections.abc import Sequence as Seq

#: A power of two: pieces are counted modulo 2^32.
NUM_SLOTS = 64
#: A plan of 64 sequences that decode has about 1 KiB. Longer messages take several slots.
SLOT_BYTES = 16 << 10
#: A follower that waits comes back to Python this often, for signals.
_PATIENCE_NS = 500_000_000


def ring_file(size: int, num_slots: int = NUM_SLOTS, slot_bytes: int = SLOT_BYTES) -> GroupFile:
    """Return memory for a ring from rank 0 to `size` - 1 followers."""
    num_bytes = load_library().baton_ring_bytes(_shape(size, num_slots, slot_bytes))
    return GroupFile(num_bytes, "baton-plans")


class PlanRingSender:
    """A `PlanSender`. `fd` is that of a `ring_file` of the same sizes.

    A follower may join late; up to a full ring of messages waits for it. `names`: see `Membership`.

    Raises:
        ConfigError: see `Membership`.
    """

    def __init__(
        self,
        fd: int,
        size: int,
        *,
        timeout_s: float = TIMEOUT_S,
        spin_s: float | None = None,
        num_slots: int = NUM_SLOTS,
        slot_bytes: int = SLOT_BYTES,
        names: Seq[int] | None = None,
    ) -> None:
        library = load_library()
        self._member = Membership(
            "ring",
            fd,
            0,
            _shape(size, num_slots, slot_bytes),
            timeout_s=timeout_s,
            spin_s=default_spin_s(size) if spin_s is None else spin_s,
            names=names,
        )
        self.size = size
        self._send = library.baton_ring_send
        self._drain = library.baton_ring_drain

    def send(self, data: bytes) -> None:
        """See `PlanSender`."""
        if self._send(self._member.handle(), data, len(data)):
            raise self._member.error()

    def drain(self) -> None:
        """See `PlanSender`."""
        if self._drain(self._member.handle()):
            raise self._member.error()

    def close(self) -> None:
        """See `PlanSender`."""
        self._member.close()


class PlanRingReceiver:
    """A `PlanReceiver`. Arguments and errors are those of `PlanRingSender`.

    `timeout_s` is that of a message of several pieces, of which some are there. `limit_s`: how long
    a message may take to come, where one is due; None: as long as rank 0 lives.
    """

    def __init__(
        self,
        fd: int,
        rank: int,
        size: int,
        *,
        timeout_s: float = TIMEOUT_S,
        spin_s: float | None = None,
        num_slots: int = NUM_SLOTS,
        slot_bytes: int = SLOT_BYTES,
        names: Seq[int] | None = None,
        limit_s: float | None = None,
    ) -> None:
        if not 1 <= rank < size:
            raise ConfigError(f"followers are ranks 1 to {size - 1}, not {rank}")
        self._member = Membership(
            "ring",
            fd,
            rank,
            _shape(size, num_slots, slot_bytes),
            timeout_s=timeout_s,
            spin_s=default_spin_s(size) if spin_s is None else spin_s,
            names=names,
        )
        self.rank = rank
        self._receive = load_library().baton_ring_receive
        self._room = ctypes.create_string_buffer(slot_bytes)
        self._num_bytes = ctypes.c_size_t()
        self._limit_s = limit_s

    def receive(self) -> bytes:
        """See `PlanReceiver`."""
        limit_s = self._limit_s
        until_s = None if limit_s is None else time.monotonic() + limit_s
        while True:
            handle, room = self._member.handle(), self._room
            waited = self._receive(handle, room, len(room), _PATIENCE_NS, self._num_bytes)
            num_bytes = self._num_bytes.value
            if waited == Waited.BROKEN:
                raise self._member.error()
            if waited == Waited.REACHED:
                if num_bytes <= len(room):
                    return ctypes.string_at(room, num_bytes)
                self._room = ctypes.create_string_buffer(num_bytes)
            elif until_s is not None and time.monotonic() > until_s:
                raise self._member.give_up(0, f"did not answer within {limit_s:g} s")

    def close(self) -> None:
        """See `PlanReceiver`."""
        self._member.close()


def _shape(size: int, num_slots: int, slot_bytes: int) -> RingShape:
    if num_slots < 1 or num_slots & (num_slots - 1):
        raise ConfigError(f"a ring has a power of two of slots, not {num_slots}")
    if size < 1 or slot_bytes < 1:
        raise ConfigError(f"no ring for {size} ranks with slots of {slot_bytes} bytes")
    return RingShape(size, num_slots, slot_bytes)
