"""The sending side of frames over ZeroMQ, and of `zmq`, whose blocks follow them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import structlog
import zmq
import zmq.asyncio

from shared.connector.protocol.frame import Coding, Frame, Kind, decode
from shared.connector.zeromq.sockets import close, send, watch
from shared.errors import TransferError, TransferFailure

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shared.connector.protocol.block_io import BlockIO
    from shared.connector.protocol.link import Link, PieceParts
    from shared.connector.protocol.tasks import Tasks

log = structlog.get_logger(__name__)

#: Time that libzmq may keep received data, or frames of a closed socket.
_DRAIN_TIMEOUT_S = 2.0


class FrameWire(ABC):
    """The frames of a `Wire` over a DEALER socket. Without sockets it is not connected."""

    carries_bytes: ClassVar[bool]

    def __init__(self, link: Link) -> None:
        self._link = link
        self._socket: zmq.asyncio.Socket | None = None
        self._monitor: zmq.asyncio.Socket | None = None

    def run(self, socket: zmq.asyncio.Socket, monitor: zmq.asyncio.Socket, tasks: Tasks) -> None:
        """Start to use the sockets, which this object owns from now on."""
        self._socket = socket
        self._monitor = monitor
        tasks.spawn(self._receive(socket), on_exit=self._lost)
        tasks.spawn(watch(monitor, self._lost), on_exit=self._lost)

    def send(self, frame: Frame) -> None:
        """See `Wire.send`."""
        self._queue([frame.encode()])

    @abstractmethod
    def send_piece(
        self,
        frame: Frame,
        blocks: Sequence[int],
        parts: PieceParts | None = None,
        copy: NDArray[np.uint8] | None = None,
    ) -> None:
        """See `Wire.send_piece`."""

    @abstractmethod
    async def release(self, transfer_id: bytes) -> None:
        """See `Wire.release`."""

    def hang_up(self) -> None:
        """See `Wire.hang_up`."""
        if self._socket is not None and self._monitor is not None:
            close(self._socket, self._monitor)

    def _queue(self, parts: Sequence[bytes | zmq.Frame]) -> None:
        if self._socket is None or self._socket.closed:
            return
        why = send(self._socket, parts, copy=False)
        if why is not None:
            # Credits keep honest queues far below the high-water mark: this peer does not read.
            asyncio.get_running_loop().call_soon(self._lost, why)

    async def _receive(self, socket: zmq.asyncio.Socket) -> None:
        try:
            while not socket.closed:
                parts = await socket.recv_multipart()
                self._on_frame(decode(parts[0]))
        except TransferError as error:
            self._link.lose(error.reason, error.detail)

    def _on_frame(self, frame: Frame) -> None:
        self._link.on_frame(frame)

    def _lost(self, why: str) -> None:
        self._link.lose(TransferFailure.PEER_LOST, why)


class ZmqWire(FrameWire):
    """A `Wire` whose messages refer to KV blocks instead of copying them."""

    carries_bytes: ClassVar[bool] = True

    def __init__(self, link: Link, io: BlockIO) -> None:
        super().__init__(link)
        self._io = io
        self._trackers: dict[bytes, list[zmq.MessageTracker]] = {}
        #: Packed pieces under way.
        self._packed: list[tuple[zmq.MessageTracker, NDArray[np.uint8]]] = []

    def send_piece(
        self,
        frame: Frame,
        blocks: Sequence[int],
        parts: PieceParts | None = None,
        copy: NDArray[np.uint8] | None = None,
    ) -> None:
        """See `Wire.send_piece`. Neighbouring blocks are sent as one part of the message."""
        payload = self._io.payload(blocks, parts, copy)
        frames = [zmq.Frame(array.data, track=True, copy=False) for array in payload]
        trackers = self._trackers.setdefault(frame.transfer_id, [])
        trackers[:] = [tracker for tracker in trackers if not tracker.done]
        trackers.extend(each.tracker for each in frames if each.tracker is not None)
        if copy is not None and frame.coding is Coding.PACKED:
            self._packed.append((trackers[-1], copy))
        self._queue([frame.encode(), *frames])

    def _on_frame(self, frame: Frame) -> None:
        if frame.kind is Kind.ACK and self._packed:
            under_way, self._packed = self._packed, []
            for tracker, copy in under_way:
                if tracker.done:
                    self._io.reuse(copy)
                else:
                    self._packed.append((tracker, copy))
        super()._on_frame(frame)

    async def release(self, transfer_id: bytes) -> None:
        """See `Wire.release`."""
        for tracker in self._trackers.get(transfer_id, ()):
            while not tracker.done and not await self._io.in_thread(partial(_is_done, tracker)):
                log.warning("blocks_still_referred_to", receiver=str(self._link.receiver))
                self._link.lose(TransferFailure.PEER_LOST, "keeps blocks that it has confirmed")
        self._trackers.pop(transfer_id, None)


def _is_done(tracker: zmq.MessageTracker) -> bool:
    """Return whether libzmq has freed the message, which may happen during the call."""
    try:
        tracker.wait(_DRAIN_TIMEOUT_S)
    except zmq.NotDone:
        return False
    return True
