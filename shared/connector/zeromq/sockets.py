"""ZeroMQ sockets for the `zmq` connector: bounded, and quick to notice a dead peer."""

from __future__ import annotations

import struct
import traceback
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

import zmq
import zmq.asyncio

from shared.address import needs_ipv6
from shared.connector.protocol.frame import MAX_FRAME_BYTES

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from shared.identity import WorkerId

#: Maximum of queued frames per peer. Credits bound their bytes; this bounds frames without any.
_HIGH_WATER_MARK = 16384
#: A peer that answers no heartbeat for this number of intervals is gone.
_MISSED_HEARTBEATS = 3
_EVENT = struct.Struct("=Hi")
#: Separator of an address and the public key of its listener.
KEY_MARK = "?curve="
GONE = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class SocketSecurity(Protocol):
    """Encryption and authentication of connections; set before a socket binds or connects.

    Data that peers need to connect becomes part of the advertised address.
    """

    #: Bytes that the security adds to a message.
    overhead_bytes: ClassVar[int]

    def start(self, context: zmq.asyncio.Context) -> None:
        """Start to check connections to the context's sockets."""
        ...

    async def stop(self) -> None:
        """Undo `start`. Idempotent."""
        ...

    def secure_server(self, socket: zmq.asyncio.Socket) -> None:
        """Configure the socket that senders connect to."""
        ...

    def secure_client(self, socket: zmq.asyncio.Socket, address: str) -> str:
        """Configure a socket for the advertised `address`; return ZeroMQ's address."""
        ...

    def advertise(self, address: str) -> str:
        """Return our `address` as it is advertised."""
        ...

    def can_reach(self, address: str) -> bool:
        """Return whether the peer's advertised `address` has our kind of security."""
        ...

    def meet(self, worker: WorkerId, address: str) -> None:
        """Accept connections of a worker that has offered this address."""
        ...

    def vouches(self, part: zmq.Frame, worker: WorkerId) -> bool:
        """Return whether a message's first part came over a connection of this worker."""
        ...


class PlainText:
    """No encryption: for a network that no untrusted process can reach."""

    overhead_bytes: ClassVar[int] = 0

    def start(self, context: zmq.asyncio.Context) -> None:
        """See `SocketSecurity`."""

    async def stop(self) -> None:
        """See `SocketSecurity`."""

    def secure_server(self, socket: zmq.asyncio.Socket) -> None:
        """See `SocketSecurity`."""

    def secure_client(self, socket: zmq.asyncio.Socket, address: str) -> str:
        """See `SocketSecurity`."""
        return address

    def advertise(self, address: str) -> str:
        """See `SocketSecurity`."""
        return address

    def can_reach(self, address: str) -> bool:
        """See `SocketSecurity`."""
        return KEY_MARK not in address

    def meet(self, worker: WorkerId, address: str) -> None:
        """See `SocketSecurity`."""

    def vouches(self, part: zmq.Frame, worker: WorkerId) -> bool:
        """See `SocketSecurity`. The ticket is the only check."""
        return True


class Sockets:
    """Makes the sockets of one connector."""

    def __init__(self, *, heartbeat_s: float, security: SocketSecurity) -> None:
        self.context = zmq.asyncio.Context()
        self._heartbeat_ms = int(heartbeat_s * 1e3)
        self._security = security

    def router(self, endpoint: str, max_message_bytes: int) -> zmq.asyncio.Socket:
        """Return a bound socket for frames from senders, with a limit on the size of parts."""
        socket = self._socket(zmq.ROUTER, max(max_message_bytes, MAX_FRAME_BYTES))
        # Sending to a lost sender must be an error, not a silent loss of the frame.
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._security.secure_server(socket)
        try:
            socket.setsockopt(zmq.IPV6, needs_ipv6(endpoint))
            socket.bind(endpoint)
        except zmq.ZMQError:
            socket.close(0)
            raise
        return socket

    def dealer(
        self, address: str, max_message_bytes: int = MAX_FRAME_BYTES
    ) -> tuple[zmq.asyncio.Socket, zmq.asyncio.Socket]:
        """Return a socket connected to `address`, and a monitor that reports when it is `GONE`."""
        socket = self._socket(zmq.DEALER, max_message_bytes)
        # A second connection must never carry frames of the first.
        socket.setsockopt(zmq.RECONNECT_IVL, -1)
        monitor = self.monitor(socket)
        try:
            endpoint = self._security.secure_client(socket, address)
            socket.setsockopt(zmq.IPV6, needs_ipv6(endpoint))
            socket.connect(endpoint)
        except zmq.ZMQError:
            close(socket, monitor)
            raise
        return socket, monitor

    def monitor(self, socket: zmq.asyncio.Socket) -> zmq.asyncio.Socket:
        """Return a monitor that reports when connections of `socket` are `GONE`."""
        monitor: zmq.asyncio.Socket = socket.get_monitor_socket(GONE)
        return monitor

    def _socket(self, kind: int, max_message_bytes: int) -> zmq.asyncio.Socket:
        socket: zmq.asyncio.Socket = self.context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, _HIGH_WATER_MARK)
        socket.setsockopt(zmq.RCVHWM, _HIGH_WATER_MARK)
        max_message_bytes += self._security.overhead_bytes
        socket.setsockopt(zmq.MAXMSGSIZE, max_message_bytes)
        socket.setsockopt(zmq.HEARTBEAT_IVL, self._heartbeat_ms)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, self._heartbeat_ms * _MISSED_HEARTBEATS)
        socket.setsockopt(zmq.HEARTBEAT_TTL, self._heartbeat_ms * _MISSED_HEARTBEATS)
        return socket


def send(
    socket: zmq.asyncio.Socket, parts: Sequence[bytes | zmq.Frame], *, copy: bool = True
) -> str | None:
    """Send at once or not at all; return the error instead of raising it.

    After the return nothing here refers to the parts of a message that was not sent.
    """
    sent = cast(
        "asyncio.Future[object]", socket.send_multipart(parts, flags=zmq.NOBLOCK, copy=copy)
    )
    error = sent.exception()
    if error is None:
        return None
    why = repr(error)
    # The future, the error and its frames form a cycle, and the frames refer to the parts.
    traceback.clear_frames(error.__traceback__)
    del sent, error
    return why


def close(socket: zmq.asyncio.Socket, monitor: zmq.asyncio.Socket) -> None:
    """Close both, and drop queued messages. Idempotent."""
    if not socket.closed:
        socket.disable_monitor()
        monitor.close(0)
        socket.close(0)


async def watch(monitor: zmq.asyncio.Socket, on_gone: Callable[[str], None]) -> None:
    """Call `on_gone` with the event's name each time a connection is lost."""
    # `on_gone` may close the monitor.
    while not monitor.closed:
        parts = await monitor.recv_multipart()
        event, _ = _EVENT.unpack(parts[0])
        if event & GONE:
            on_gone(zmq.Event(event).name or "gone")
