"""Transfers between processes of one host: the receiver copies from the sender's memory.

A sender passes the descriptor of its KV memory once per connection; after that only block numbers
are sent. Nothing has a name except the socket, so a killed process leaves no memory behind.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from shared.connector.base import Offer
from shared.connector.protocol.frame import Frame, Kind, decode
from shared.connector.protocol.limits import DEFAULT_LIMITS, TransferLimits
from shared.connector.protocol.receiver import Session
from shared.connector.protocol.transport import Transport
from shared.connector.unix.packets import Packets, connect, listen
from shared.connector.unix.peer_memory import PeerMemory
from shared.connector.unix.runtime_dir import boot_id, is_socket, prepare, remove_stale
from shared.errors import TransferError, TransferFailure

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shared.connector.protocol.link import Link, PieceParts, Wire
    from shared.connector.protocol.receiver import Payload
    from shared.identity import WorkerId
    from shared.kv.memory import KVMemory

_ACCEPT_RETRY_S = 0.1
#: Prefix of the socket's name.
_PREFIX = "baton-kv-"


class NamingWire:
    """A `Wire` that sends numbers of blocks in a memory which the receiver has mapped.

    Without a socket it is not connected.
    """

    carries_bytes: ClassVar[bool] = False

    def __init__(self, packets: Packets | None) -> None:
        self._packets = packets

    def send(self, frame: Frame) -> None:
        """See `Wire.send`."""
        if self._packets is not None:
            self._packets.send(frame.encode())

    def send_piece(
        self,
        frame: Frame,
        blocks: Sequence[int],
        parts: PieceParts | None = None,
        copy: NDArray[np.uint8] | None = None,
    ) -> None:
        """See `Wire.send_piece`. The receiver knows which parts of them move."""
        self.send(replace(frame, body=np.asarray(blocks, "<u4").tobytes()))

    async def release(self, transfer_id: bytes) -> None:
        """See `Wire.release`. Nothing on this side refers to a block."""

    def hang_up(self) -> None:
        """See `Wire.hang_up`."""
        if self._packets is not None:
            self._packets.close()


class ShmConnector(Transport):
    """The connector `shm`. Its socket lies in `runtime_dir`, which only this user may enter."""

    name = "shm"

    def __init__(
        self,
        *,
        worker: WorkerId,
        memory: KVMemory,
        runtime_dir: Path,
        limits: TransferLimits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(worker=worker, memory=memory, limits=limits)
        self._path = runtime_dir.absolute() / f"{_PREFIX}{secrets.token_hex(8)}.sock"
        self._listener: socket.socket | None = None
        self._boot_id = ""

    def offer(self) -> Offer:
        """See `Connector.offer`."""
        return Offer(
            connector=self.name, address=str(self._path), params={"boot_id": self._boot_id}
        )

    async def can_reach(self, offer: Offer) -> bool:
        """Return whether the peer runs under the same kernel, and its socket can be reached."""
        return offer.params.get("boot_id") == self._boot_id and is_socket(offer.address)

    async def _listen(self) -> None:
        prepare(self._path.parent)
        remove_stale(self._path.parent, _PREFIX)
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
                # Out of descriptors. Connecting peers wait in the queue until there are some.
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
        memory: PeerMemory | None = None
        try:
            while True:
                data, fds = await packets.receive()
                if not data:
                    return
                try:
                    frame = decode(data)
                    if memory is None and frame.kind is Kind.HELLO:
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

    def _open(self, hello: Frame, fds: Sequence[int]) -> PeerMemory:
        if not fds:
            raise TransferError(TransferFailure.CORRUPT, "a greeting without a memory")
        return PeerMemory(fds[0], hello)

    def _dial(self, link: Link, hello: Frame) -> Wire:
        def lost(why: str) -> None:
            link.lose(TransferFailure.PEER_LOST, why)

        try:
            packets = Packets(connect(Path(link.address)))
        except OSError as error:
            asyncio.get_running_loop().call_soon(lost, str(error))
            return NamingWire(None)
        packets.send(hello.encode(), (self._memory.fd,))
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
