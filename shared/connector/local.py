"""Transfers within one process: bytes are copied directly from one memory to the other."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, ClassVar

from shared.connector.base import Offer
from shared.connector.protocol.frame import Frame, decode
from shared.connector.protocol.limits import DEFAULT_LIMITS, TransferLimits
from shared.connector.protocol.receiver import Receiver, Session
from shared.connector.protocol.transport import Transport
from shared.errors import TransferError, TransferFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shared.connector.protocol.block_io import BlockIO
    from shared.connector.protocol.inbound import Inbound
    from shared.connector.protocol.link import Link, PieceParts, Wire
    from shared.connector.protocol.tasks import Tasks
    from shared.identity import WorkerId
    from shared.kv.memory import KVMemory


class LocalHub:
    """The registry of one process's connectors by address."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(8)
        self._doors: dict[str, LocalConnector] = {}

    def add(self, connector: LocalConnector, address: str) -> None:
        """Make a started connector reachable."""
        self._doors[address] = connector

    def remove(self, address: str) -> None:
        """Undo `add`. Idempotent."""
        self._doors.pop(address, None)

    def __contains__(self, address: str) -> bool:
        return address in self._doors

    def ring(
        self, address: str, *, answer: Callable[[Frame], None], on_close: Callable[[], None]
    ) -> LocalPort | None:
        """Return a connection to the connector at `address`; None if there is none."""
        connector = self._doors.get(address)
        return None if connector is None else connector.admit(answer, on_close)


class LocalPort:
    """The sender's end of a connection; a task of the receiving connector serves it."""

    def __init__(
        self,
        receiver: Receiver,
        tasks: Tasks,
        answer: Callable[[Frame], None],
        on_close: Callable[[], None],
    ) -> None:
        self._receiver = receiver
        self._answer = answer
        self._on_close = on_close
        self._session = Session(self._reply)
        self._queue: asyncio.Queue[tuple[bytes, Sequence[NDArray[np.uint8]]]] = asyncio.Queue()
        self._dropped: tuple[Inbound, ...] = ()
        self._ended = asyncio.Event()
        # Cleared at its end: a cancelled task refers to all of its objects.
        self._task: asyncio.Task[None] | None = tasks.spawn(self._serve(), on_exit=self._end)

    def send(self, data: bytes, payload: Sequence[NDArray[np.uint8]] = ()) -> None:
        """Queue a frame and its payload."""
        self._queue.put_nowait((data, payload))

    def hang_up(self) -> None:
        """Drop queued frames and end every transfer. Idempotent."""
        self._drop("the sender hung up")
        if self._task is not None:
            self._task.cancel()

    async def closed(self) -> None:
        """Wait, after `hang_up`, until the receiver reads no sent block."""
        await self._ended.wait()
        for inbound in self._dropped:
            await inbound.abort()
        await self._session.quiet()

    def _reply(self, frame: Frame) -> None:
        # From the loop, as if from a socket: the sender is never called within its calls.
        asyncio.get_running_loop().call_soon(self._answer, frame)

    def _drop(self, why: str) -> None:
        self._dropped += tuple(self._session.transfers.values())
        self._receiver.drop(self._session, TransferError(TransferFailure.PEER_LOST, why))

    async def _serve(self) -> None:
        while True:
            data, payload = await self._queue.get()
            try:
                await self._receiver.handle(self._session, decode(data), payload)
            except TransferError as error:
                self._receiver.drop(self._session, error)
                return

    def _end(self, why: str) -> None:
        self._drop(why)
        self._task = None
        self._ended.set()
        asyncio.get_running_loop().call_soon(self._on_close)


class LocalWire:
    """A `Wire` to a connector of this process; without a port it is not connected."""

    carries_bytes: ClassVar[bool] = True

    def __init__(self, port: LocalPort | None, io: BlockIO) -> None:
        self._port = port
        self._io = io
        self._hung_up = False

    def send(self, frame: Frame) -> None:
        """See `Wire.send`."""
        if self._port is not None:
            self._port.send(frame.encode())

    def send_piece(
        self,
        frame: Frame,
        blocks: Sequence[int],
        parts: PieceParts | None = None,
        copy: NDArray[np.uint8] | None = None,
    ) -> None:
        """See `Wire.send_piece`."""
        if self._port is not None:
            self._port.send(frame.encode(), self._io.payload(blocks, parts, copy))

    async def release(self, transfer_id: bytes) -> None:
        """See `Wire.release`."""
        if self._port is not None and self._hung_up:
            await self._port.closed()

    def hang_up(self) -> None:
        """See `Wire.hang_up`."""
        self._hung_up = True
        if self._port is not None:
            self._port.hang_up()


class LocalConnector(Transport):
    """The connector `local`."""

    name = "local"

    def __init__(
        self,
        *,
        worker: WorkerId,
        memory: KVMemory,
        hub: LocalHub,
        limits: TransferLimits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(worker=worker, memory=memory, limits=limits)
        self._hub = hub

    def offer(self) -> Offer:
        """See `Connector.offer`."""
        return Offer(
            connector=self.name, address=str(self._worker), params={"hub": self._hub.token}
        )

    async def can_reach(self, offer: Offer) -> bool:
        """Return whether the peer is in the same hub."""
        return offer.params.get("hub") == self._hub.token and offer.address in self._hub

    def admit(self, answer: Callable[[Frame], None], on_close: Callable[[], None]) -> LocalPort:
        """Connect a sender of this process; return its port."""
        return LocalPort(self._receiver, self._tasks, answer, on_close)

    async def _listen(self) -> None:
        self._hub.add(self, str(self._worker))

    async def _unlisten(self) -> None:
        self._hub.remove(str(self._worker))

    def _dial(self, link: Link, hello: Frame) -> Wire:
        loop = asyncio.get_running_loop()

        def lost() -> None:
            link.lose(TransferFailure.PEER_LOST, "the receiver has closed")

        port = self._hub.ring(link.address, answer=link.on_frame, on_close=lost)
        wire = LocalWire(port, self._io)
        if port is None:
            loop.call_soon(lost)
        wire.send(hello)
        return wire
