"""What the ranks of a group offer each other.

Collective operations, messages from rank 0, and tensors from one stage of a pipeline to the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

    from shared.errors import RankError


#: Of a group.
MAX_RANKS = 64


class Collective(Protocol):
    """Operations that every rank of a group calls, in the same order, with tensors of one shape.

    Calls of a rank come from one thread. Each returns when its result is there, which is not to say
    that the other ranks have returned. Each raises RankError, which names a rank, when that rank
    died, left, is in another operation, or is late by more than the group's time-out. The group is
    broken then: every later call, of every rank, raises RankError at once.

    A tensor stays its caller's, and a result belongs to its caller.
    """

    @property
    def rank(self) -> int:
        """This rank, from 0."""
        ...

    @property
    def size(self) -> int:
        """The number of ranks."""
        ...

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over the ranks: float32, bfloat16 or float16.

        Additions are made in the order of ranks, of bfloat16 and float16 in float32, rounded once.
        So the bits are the same on all ranks, and do not depend on timing.

        Raises:
            ValueError: another dtype.
        """
        ...

    def all_gather(self, tensor: Tensor, dim: int = -1) -> Tensor:
        """Return the ranks' tensors, concatenated along `dim` in the order of ranks."""
        ...

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """Replace a tensor by that of rank `source`."""
        ...

    def barrier(self) -> None:
        """Return after every rank has called this."""
        ...

    def close(self) -> None:
        """Leave the group: ranks that still wait for this one raise RankError. Idempotent.

        Of the thread that makes the calls: no call may be in progress.
        """
        ...


@runtime_checkable
class NativeCollective(Collective, Protocol):
    """A `Collective` that native code calls by itself, in place of the rank's thread."""

    @property
    def native(self) -> int:
        """The address of the native object, valid until `close`.

        Raises:
            RankError: this rank has left.
        """
        ...

    def error(self) -> RankError:
        """Return why the group is broken: a call of native code failed."""
        ...


@runtime_checkable
class DeviceCollective(Collective, Protocol):
    """A `Collective` of tensors on devices.

    A call returns when its work is in the device's current stream, and its result is there for all
    that is put into this stream behind it. So a lost rank is not found by a call, but by what waits
    for the device, and that wait has no end of its own: see `abort`. `barrier` and what connects
    the devices aside, no call waits for its device: a graph may record it.
    """

    def abort(self, reason: RankError) -> None:
        """End what is launched: those who wait for the device go on, with wrong numbers.

        Returns at once, from any thread. Every later call raises an error: the first reason.
        """
        ...


class PlanSender(Protocol):
    """Rank 0's end of a plan channel: a bounded queue of messages to every follower.

    All calls come from one thread. RankError names a follower that died, left, or took nothing for
    the channel's time-out while the queue was full; the channel is broken then.
    """

    @property
    def size(self) -> int:
        """The number of ranks, this one included."""
        ...

    def send(self, data: bytes) -> None:
        """Queue a message of any length for every follower. Waits while the queue is full."""
        ...

    def drain(self) -> None:
        """Return when every follower has taken every message."""
        ...

    def close(self) -> None:
        """End the channel: followers take what is queued, then raise RankError. Idempotent."""
        ...


class PlanReceiver(Protocol):
    """A follower's end of a plan channel. All calls come from one thread."""

    @property
    def rank(self) -> int:
        """This rank, from 1."""
        ...

    def receive(self) -> bytes:
        """Return the next message, each once and in order. Waits for it as long as rank 0 lives.

        That a message was taken is all that rank 0 learns.

        Raises:
            RankError: rank 0 died or closed the channel, or the channel is broken.
        """
        ...

    def close(self) -> None:
        """Leave the channel. Idempotent."""
        ...


class Pipe(Protocol):
    """A rank's ends of the connections to its peers in the stages before and behind its own.

    Tensors arrive once, in the order in which they were sent; both ends know their shape and dtype.
    All calls come from one thread. RankError names a peer that died, left, or is late by more than
    the pipe's time-out, or that sent another tensor than is awaited; that connection is broken
    then.
    """

    def send(self, tensor: Tensor) -> None:
        """Send a tensor to the next stage.

        Returns when it may be changed again, which is not to say that it was received. Waits while
        too much of what was sent is not received yet.
        """
        ...

    def receive(self, tensor: Tensor) -> None:
        """Fill a tensor with the next one of the stage before. Waits for it."""
        ...

    def close(self) -> None:
        """Leave: a peer that waits for this rank raises RankError. Idempotent."""
        ...
