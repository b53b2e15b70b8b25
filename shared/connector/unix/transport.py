"""Transfers between processes of one host in which the receiver reads the sender's own memory.

A sender shows its memory once per connection; after that only names of blocks travel. What a
subclass adds is how a memory is shown, and how it is opened.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np

from shared.connector.base import Offer
from shared.connector.protocol.frame import Frame, decode
from shared.connector.protocol.receiver import Session
from shared.connector.protocol.transport import BaseTransport
from shared.connector.unix.packets import Packets, connect, listen
from shared.connector.unix.runtime_dir import boot_id, prepare, remove_stale
from shared.errors import TransferError, TransferFailure

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from shared.connector.protocol.block_io import BlockAccess, BlockMemory
    from shared.connector.protocol.inbound import Parts
    from shared.connector.protocol.limits import TransferLimits
    from shared.connector.protocol.link import Link, Wire
    from shared.connector.protocol.receiver import Payload
    from shared.identity import WorkerId

_ACCEPT_RETRY_S = 0.1


class NamingWire:
    """A `Wire` that names blocks of a memory which the receiver has opened.

    Without a socket it leads nowhere.
    """

    def __init__(self, packets: Packets | None) -> None:
        self._packets = packets

    def send(self, frame: Frame) -> None:
        """See `Wire.send`."""
        if self._packets is not None:
            self._packets.send(frame.encode())

    def send_piece(self, frame: Frame, blocks: Sequence[int]) -> None:
        """See `Wire.send_piece`."""
        self.send(replace(frame, body=np.asarray(blocks, "<u4").tobytes()))

    async def release(self, transfer_id: bytes) -> None:
        """See `Wire.release`. On this side nothing refers to a block."""

    def hang_up(self) -> None:
        """See `Wire.hang_up`."""
        if self._packets is not None:
            self._packets.close()


class OpenedMemory(Protocol):
    """A peer's memory, as this process reads it."""

    def blocks(self, frame: Frame) -> Parts:
        """The blocks that a piece names.

        Raises:
            TransferError: OUT_OF_RANGE.
        """
        ...

    def close(self) -> None:
        """Unmap it, once nobody reads any of its blocks."""
        ...


class UnixTransport(BaseTransport):
    """A connector whose socket lies in `runtime_dir`, which only this user may enter."""

    #: Of the socket's name.
    prefix: ClassVar[str]

    def __init__(
        self,
        *,
        worker: WorkerId,
        memory: BlockMemory,
        io: BlockAccess,
        runtime_dir: Path,
        limits: TransferLimits,
    ) -> None:
        super().__init__(worker=worker, memory=memory, io=io, limits=limits)
        self._path = runtime_dir.absolute() / f"{self.prefix}{secrets.token_hex(8)}.sock"
        self._listener: socket.socket | None = None
        self._boot_id = ""

    @abstractmethod
    def _greet(self, packets: Packets, hello: Frame) -> None:
        """Send `hello`; it may show this worker's memory."""

    @abstractmethod
    def _open(self, frame: Frame, fds: Sequence[int]) -> OpenedMemory | None:
        """The peer's memory, if this is the frame that shows it.

        Raises:
            TransferError: it cannot be opened, or is not what it is said to be.
        """

    def offer(self) -> Offer:
        """See `Connector.offer`."""
        return Offer(
            connector=self.name, address=str(self._path), params={"boot_id": self._boot_id}
        )

    def can_reach(self, offer: Offer) -> bool:
        """Whether the peer runs under the same kernel, in reach of its socket."""
        if offer.params.get("boot_id") != self._boot_id:
            return False
        try:
            return Path(offer.address).is_socket()
        except OSError:
            return False

    async def _listen(self) -> None:
        prepare(self._path.parent)
        remove_stale(self._path.parent, self.prefix)
        self._boot_id = boot_id()
        self._listener = listen(self._path)
        self._tasks.spawn(self._accept(self._listener), on_exit=lambda _: None)

    async def _unlisten(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._path.unlink(missing_ok=True)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listener)
            except OSError:
                # Out of descriptors. Who connects waits in the queue until there are some.
                await asyncio.sleep(_ACCEPT_RETRY_S)
                continue
            self._admit(Packets(sock))

    def _admit(self, packets: Packets) -> None:
        session = Session(lambda frame: packets.send(frame.encode()))

        def ended(why: str) -> None:
            self._receiver.drop(session, TransferError(TransferFailure.PEER_LOST, why))
            packets.close()

        self._tasks.spawn(self._serve(session, packets), on_exit=ended)

    async def _serve(self, session: Session, packets: Packets) -> None:
        memory: OpenedMemory | None = None
        try:
            while True:
                data, fds = await packets.receive()
                if not data:
                    return
                try:
                    frame = decode(data)
                    if memory is None:
                        memory = self._open(frame, fds)
                finally:
                    for fd in fds:
                        os.close(fd)
                blocks: Payload = () if memory is None else memory.blocks
                await self._receiver.handle(session, frame, blocks)
        except TransferError as error:
            self._receiver.drop(session, error)
        finally:
            if memory is not None:
                memory.close()

    def _dial(self, link: Link, hello: Frame) -> Wire:
        def lost(why: str) -> None:
            link.lose(TransferFailure.PEER_LOST, why)

        try:
            packets = Packets(connect(Path(link.address)))
        except OSError as error:
            asyncio.get_running_loop().call_soon(lost, str(error))
            return NamingWire(None)
        self._greet(packets, hello)
        self._tasks.spawn(self._listen_to(link, packets), on_exit=lost)
        return NamingWire(packets)

    async def _listen_to(self, link: Link, packets: Packets) -> None:
        try:
            while True:
                data, fds = await packets.receive()
                for fd in fds:
                    os.close(fd)
                if not data:
                    return
                link.on_frame(decode(data))
        except TransferError as error:
            link.lose(error.reason, error.detail)
        finally:
            packets.close()
