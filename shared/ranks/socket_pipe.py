"""Tensors from a stage of a pipeline to the next one on another host, by ZeroMQ."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from shared.errors import InternalError

if TYPE_CHECKING:
    from torch import Tensor

    from shared.ranks.plan_socket import PlanSocketReceiver, PlanSocketSender

#: Tensors that may wait for the next stage: it may be so many steps behind.
ROOM = 8


class SocketPipe:
    """A `Pipe` whose tensors are messages of a channel to each neighbour, which it owns."""

    def __init__(self, before: PlanSocketReceiver | None, behind: PlanSocketSender | None) -> None:
        """Take the ends. `before`: with a limit for each tensor. None: there is no such stage."""
        self._before, self._behind = before, behind

    def send(self, tensor: Tensor) -> None:
        """See `Pipe`."""
        if self._behind is None:
            raise InternalError("the last stage sends to no other")
        own = tensor.contiguous()
        self._behind.send(ctypes.string_at(own.data_ptr(), own.nbytes))

    def receive(self, tensor: Tensor) -> None:
        """See `Pipe`. The tensor is contiguous."""
        if self._before is None:
            raise InternalError("the first stage receives from no other")
        data = self._before.receive()
        if len(data) != tensor.nbytes:
            raise self._before.give_up(f"sent {len(data)} bytes in place of {tensor.nbytes}")
        ctypes.memmove(tensor.data_ptr(), data, len(data))

    def close(self) -> None:
        """See `Pipe`."""
        for end in (self._before, self._behind):
            if end is not None:
                end.close()
