"""All proxies of a cluster: who speaks to whom, and which requests passed."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import defaultdict
from typing import TYPE_CHECKING

from benchmarks.faults.wire.connection import Channel, Connection, Way
from benchmarks.faults.wire.zmtp import Message
from shared.connector.protocol.frame import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.faults.wire.connection import Filter

#: The ids that load and victims give to their requests; services add to them, and keep them.
REQUEST_ID = re.compile(rb"fx[lv]-\d{6}")
_ID_BYTES = 10
#: Kept of what follows a victim's request to a prefill worker: its ticket is in there.
_CAPTURE_BYTES = 1 << 16

#: A process, and where it really listens.
Place = tuple[str, tuple[str, int]]


class Hub:
    """Opens proxies, and is asked about every unit that passes one of them."""

    def __init__(self, source_of: Callable[[str, int], str]) -> None:
        """`source_of` names the process that connects from an address."""
        self._source_of = source_of
        self._servers: list[asyncio.Server] = []
        self._connections: set[Connection] = set()
        self._frozen: set[frozenset[str]] = set()
        self._tails: dict[Connection, bytes] = {}
        self.filters: list[Filter] = []
        #: Names of the processes that each request has passed through.
        self.passed: dict[str, set[str]] = defaultdict(set)
        #: Called with id, connection and way when an id passes for the first time on a link.
        self.on_request: Callable[[str, Connection], None] | None = None
        #: Called when a piece of the watched request's transfer passes.
        self.on_piece: Callable[[Connection], None] | None = None
        self._watched = ""
        self._capture: tuple[Connection, bytearray] | None = None
        self.num_pieces_of_watched = 0

    async def open(self, host: str, channel: Channel, *places: Place, port: int = 0) -> int:
        """Listen on a port of `host`, 0: a free one, for a process, or for several in turn.

        Raises:
            OSError: the port is in use.
        """
        turns = itertools.count()

        def accept() -> _Side:
            turn = next(turns) % len(places)
            return _Side(self, channel, places[turn:] + places[:turn])

        server = await asyncio.get_running_loop().create_server(accept, host, port)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Cut everything and stop listening."""
        for server in self._servers:
            server.close()
        for connection in tuple(self._connections):
            connection.cut()
        await asyncio.sleep(0)

    def watch(self, request_id: str) -> None:
        """Follow this request's transfer."""
        self._watched, self._capture, self.num_pieces_of_watched = request_id, None, 0

    def between(self, one: str, other: str) -> list[Connection]:
        """Return the live connections between two processes, in either direction."""
        pair = {one, other}
        return [c for c in self._connections if {c.source, c.target} == pair]

    def freeze(self, one: str, other: str, *, frozen: bool) -> None:
        """Let nothing pass between two processes, on old connections or new ones."""
        pair = frozenset((one, other))
        (self._frozen.add if frozen else self._frozen.discard)(pair)
        for connection in self.between(one, other):
            connection.freeze(frozen=frozen)

    def connected(self, peer: tuple[str, int], target: str, channel: Channel) -> Connection:
        """Record a new connection to `target`; it is frozen if its pair of processes is."""
        connection = Connection(self, self._source_of(*peer), target, channel)
        self._connections.add(connection)
        if frozenset((connection.source, target)) in self._frozen:
            connection.freeze(frozen=True)
        return connection

    def forget(self, connection: Connection) -> None:
        """Remove a connection that has ended."""
        self._connections.discard(connection)
        self._tails.pop(connection, None)

    def filtered(self, connection: Connection, way: Way, unit: bytes | Message) -> bool:
        """Whether some filter has dealt with the unit."""
        return any(one.take(connection, way, unit) for one in tuple(self.filters))

    def observe(self, connection: Connection, way: Way, unit: bytes | Message) -> None:
        """A unit is about to pass."""
        if isinstance(unit, Message):
            if unit.kind is Kind.PIECE:
                self._observe_piece(connection, unit)
        elif way is Way.OUT and connection.channel in (Channel.GRPC, Channel.CLIENT):
            self._observe_requests(connection, unit)

    def _observe_piece(self, connection: Connection, message: Message) -> None:
        if self._capture is None or message.transfer_id not in self._capture[1]:
            return
        self.num_pieces_of_watched += 1
        if self.on_piece is not None:
            self.on_piece(connection)

    def _observe_requests(self, connection: Connection, data: bytes) -> None:
        text = self._tails.get(connection, b"") + data
        # Long enough for an id that is cut, too short for a whole one.
        self._tails[connection] = text[-(_ID_BYTES - 1) :]
        if self._capture is not None and self._capture[0] is connection:
            self._capture[1].extend(data[: _CAPTURE_BYTES - len(self._capture[1])])
        for found in set(REQUEST_ID.findall(text)):
            request_id = found.decode()
            if request_id == self._watched and "prefill" in connection.target:
                self._capture = (connection, bytearray(data))
            self.passed[request_id] |= {connection.source, connection.target}
            if self.on_request is not None:
                self.on_request(request_id, connection)


class _Side(asyncio.Protocol):
    """One end of a connection: the accepted one, or (`way` is OUT) the one that we opened."""

    def __init__(self, hub: Hub, channel: Channel, places: Sequence[Place]) -> None:
        self._hub, self._channel, self._places = hub, channel, places
        self._connection: Connection | None = None
        self._way = Way.BACK
        self._dialling: asyncio.Task[None] | None = None

    def join(self, connection: Connection) -> None:
        """This is the far end of `connection`."""
        self._connection, self._way = connection, Way.OUT

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if self._connection is None:
            peer = transport.get_extra_info("peername")
            target = self._places[0][0]
            self._connection = self._hub.connected(peer[:2], target, self._channel)
            self._dialling = asyncio.create_task(self._dial(self._connection))
        self._connection.attach(self._way, transport)

    def data_received(self, data: bytes) -> None:
        assert self._connection is not None
        self._connection.received(self._way.other, data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._dialling is not None:
            self._dialling.cancel()
        if self._connection is not None:
            self._connection.lost(self._way)

    def pause_writing(self) -> None:
        assert self._connection is not None
        self._connection.choke(self._way, choked=True)

    def resume_writing(self) -> None:
        assert self._connection is not None
        self._connection.choke(self._way, choked=False)

    async def _dial(self, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        far = _Side(self._hub, self._channel, self._places)
        far.join(connection)
        for target, address in self._places:
            connection.target = target
            try:
                await loop.create_connection(lambda: far, *address)
            except OSError:
                continue
            return
        connection.cut()
        self._hub.forget(connection)
