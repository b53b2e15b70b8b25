"""Transfers over the network, by ZeroMQ: a ROUTER receives, a DEALER per receiver sends."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, TypedDict, Unpack

import numpy as np
import zmq
import zmq.asyncio

from shared.address import is_every_host, join_address, split_endpoint
from shared.connector.base import Offer
from shared.connector.packing.rule import PackingMode
from shared.connector.protocol.block_io import BlockIO, Packed
from shared.connector.protocol.frame import Coding, Frame, Kind, decode
from shared.connector.protocol.greeting import parties
from shared.connector.protocol.limits import DEFAULT_LIMITS, TransferLimits
from shared.connector.protocol.receiver import Session
from shared.connector.protocol.transport import BaseTransport
from shared.connector.unix.runtime_dir import boot_id, is_socket
from shared.connector.zeromq.sockets import PlainText, Sockets, SocketSecurity, close, send, watch
from shared.connector.zeromq.wire import FrameWire, ZmqWire
from shared.errors import ConfigError, TransferError, TransferFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from shared.connector.protocol.block_io import BlockAccess, BlockMemory
    from shared.connector.protocol.link import Link, Wire
    from shared.identity import WorkerId
    from shared.kv.memory import KVMemory

_IPC = "ipc://"
#: libzmq reports the loss of a connection a moment before it forgets the peer.
_PROBE_DELAYS_S = (0.0, 0.05, 0.5)
_NO_SECURITY = PlainText()


class FrameOptions(TypedDict, total=False):
    """Options of the sockets of `FrameTransport`."""

    endpoint: str
    advertise_host: str | None
    advertise_port: int | None
    heartbeat_s: float
    security: SocketSecurity
    packing: PackingMode


class FrameTransport(BaseTransport):
    """A connector whose frames are sent by ZeroMQ, for blocks in any memory.

    Binds `endpoint` (tcp://host:port, port 0 for any, or ipc://path). Peers connect to
    `advertise_host`, which a wildcard endpoint needs, and `advertise_port`. A peer that is silent
    for three heartbeats is lost.
    """

    def __init__(
        self,
        *,
        worker: WorkerId,
        memory: BlockMemory,
        io: BlockAccess,
        limits: TransferLimits,
        endpoint: str = "tcp://127.0.0.1:0",
        advertise_host: str | None = None,
        advertise_port: int | None = None,
        heartbeat_s: float = 2.0,
        security: SocketSecurity = _NO_SECURITY,
        packing: PackingMode = PackingMode.OFF,
    ) -> None:
        """Make the connector. packing: only of one whose pieces carry bytes."""
        is_local = endpoint.startswith(_IPC)
        if not is_local and advertise_host is None and is_every_host(split_endpoint(endpoint)[0]):
            raise ConfigError(f"endpoint {endpoint} needs an advertise_host that peers can reach")
        super().__init__(worker=worker, memory=memory, io=io, limits=limits, packing=packing)
        self._block_bytes = memory.layout.block_bytes
        self._endpoint = endpoint
        self._advertise_host = advertise_host
        self._advertise_port = advertise_port
        self._heartbeat_s = heartbeat_s
        self._security = security
        self._sessions: dict[bytes, Session] = {}
        self._sockets: Sockets | None = None
        self._router: zmq.asyncio.Socket | None = None
        self._monitor: zmq.asyncio.Socket | None = None
        self._address = ""
        self._boot_id = ""

    @abstractmethod
    async def _handle(self, session: Session, frame: Frame, parts: Sequence[zmq.Frame]) -> None:
        """Pass a frame, and the parts after it, to the receiver."""

    @abstractmethod
    def _wire(self, link: Link) -> FrameWire:
        """Return the sending side of a new connection."""

    def offer(self) -> Offer:
        """See `Connector.offer`."""
        return Offer(connector=self.name, address=self._address, params={"boot_id": self._boot_id})

    async def can_reach(self, offer: Offer) -> bool:
        """Return whether the peer has a TCP address with our kind of security; paths are local
        only.
        """
        if not offer.address.startswith(_IPC):
            return offer.address.startswith("tcp://") and self._security.can_reach(offer.address)
        path = offer.address.removeprefix(_IPC)
        return offer.params.get("boot_id") == self._boot_id and is_socket(path)

    def meet(self, worker: WorkerId, offer: Offer) -> None:
        """See `Connector.meet`."""
        self._security.meet(worker, offer.address)

    async def _listen(self) -> None:
        self._boot_id = boot_id()
        self._sockets = Sockets(heartbeat_s=self._heartbeat_s, security=self._security)
        self._security.start(self._sockets.context)
        max_bytes = max(self._limits.piece_bytes, self._block_bytes)
        try:
            router = self._sockets.router(self._endpoint, max_bytes)
        except zmq.ZMQError as error:
            raise ConfigError(f"endpoint {self._endpoint}: {error}") from error
        self._router = router
        self._address = router.getsockopt_string(zmq.LAST_ENDPOINT)
        if not self._address.startswith(_IPC):
            host, port = split_endpoint(self._address)
            self._address = (
                f"tcp://{join_address(self._advertise_host or host, self._advertise_port or port)}"
            )
        self._address = self._security.advertise(self._address)
        self._monitor = self._sockets.monitor(router)
        self._tasks.spawn(self._serve(router), on_exit=self._unserved)
        self._tasks.spawn(watch(self._monitor, self._probe), on_exit=lambda _: None)

    async def _unlisten(self) -> None:
        if self._router is not None and self._monitor is not None:
            close(self._router, self._monitor)
        await self._security.stop()
        if self._sockets is not None:
            # It waits until every socket is closed, sometimes for some milliseconds.
            await self._access.in_thread(self._sockets.context.term)

    async def _serve(self, router: zmq.asyncio.Socket) -> None:
        while True:
            parts = await router.recv_multipart(copy=False)
            await self._take(parts[0].bytes, parts[1:])
            # Not even the last piece may stay in memory twice while nothing arrives.
            del parts

    async def _take(self, peer: bytes, parts: Sequence[zmq.Frame]) -> None:
        session = self._sessions.get(peer)
        if session is None:
            session = self._session(partial(self._reply, peer))
        try:
            frame = decode(parts[0].buffer if parts else b"")
            self._require_known(session, frame, parts[0])
            await self._handle(session, frame, parts[1:])
        except TransferError as error:
            self._receiver.drop(session, error)
            self._sessions.pop(peer, None)
            await asyncio.sleep(0)
            return
        # Only sessions whose peer has sent a HELLO are kept.
        if session.sender is not None:
            self._sessions[peer] = session

    def _require_known(self, session: Session, frame: Frame, part: zmq.Frame) -> None:
        """Raise TransferError if the frame's key is not that of the session's sender."""
        sender = session.sender
        if sender is None and frame.kind is Kind.HELLO:
            sender = parties(frame)[0]
        if sender is not None and not self._security.vouches(part, sender):
            message = f"a peer with another key claims to be {sender}"
            raise TransferError(TransferFailure.UNKNOWN_TICKET, message)

    def _session(self, reply: Callable[[Frame], None]) -> Session:
        return Session(reply)

    def _reply(self, peer: bytes, frame: Frame) -> None:
        if self._router is None or self._router.closed:
            return
        if send(self._router, [peer, frame.encode()]) is not None:
            # The peer is gone, or does not read its answers.
            asyncio.get_running_loop().call_soon(self._lost, peer)

    def _probe(self, event: str) -> None:
        """Find the peer of a lost connection: the router socket cannot send to it."""
        loop = asyncio.get_running_loop()
        for delay_s in _PROBE_DELAYS_S:
            loop.call_later(delay_s, self._probe_all)

    def _probe_all(self) -> None:
        for peer in tuple(self._sessions):
            self._reply(peer, Frame(kind=Kind.PROBE))

    def _lost(self, peer: bytes) -> None:
        session = self._sessions.pop(peer, None)
        if session is not None:
            error = TransferError(TransferFailure.PEER_LOST, "the sender's connection is gone")
            self._receiver.drop(session, error)

    def _unserved(self, why: str) -> None:
        for peer in tuple(self._sessions):
            self._lost(peer)

    def _dial(self, link: Link, hello: Frame) -> Wire:
        if self._sockets is None:
            raise TransferError(TransferFailure.PEER_LOST, "this connector is not started")
        wire = self._wire(link)
        try:
            wire.run(*self._sockets.dealer(link.address), self._tasks)
        except zmq.ZMQError as error:
            asyncio.get_running_loop().call_soon(link.lose, TransferFailure.PEER_LOST, str(error))
        wire.send(hello)
        return wire


class ZmqConnector(FrameTransport):
    """The connector `zmq`: blocks follow their frames."""

    name = "zmq"

    def __init__(
        self,
        *,
        worker: WorkerId,
        memory: KVMemory,
        limits: TransferLimits = DEFAULT_LIMITS,
        **options: Unpack[FrameOptions],
    ) -> None:
        self._io = BlockIO(memory)
        super().__init__(worker=worker, memory=memory, io=self._io, limits=limits, **options)

    async def _handle(self, session: Session, frame: Frame, parts: Sequence[zmq.Frame]) -> None:
        content = _bytes(parts)
        if frame.coding is Coding.PLAIN:
            await self._receiver.handle(session, frame, content)
        elif len(content) != 1:
            raise TransferError(TransferFailure.CORRUPT, f"a packed piece in {len(content)} parts")
        else:
            await self._receiver.handle(session, frame, Packed(content[0]))

    def _wire(self, link: Link) -> FrameWire:
        return ZmqWire(link, self._io)


def _bytes(parts: Sequence[zmq.Frame]) -> list[NDArray[np.uint8]]:
    """Return the parts unchanged; the receiver refuses wrong sizes."""
    return [np.frombuffer(part.buffer, np.uint8) for part in parts]
