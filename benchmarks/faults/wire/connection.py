"""One proxied connection: two sides, and what may be done to the bytes between them."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

from benchmarks.faults.wire.zmtp import Message, ZmtpReader

if TYPE_CHECKING:
    import asyncio

    from benchmarks.faults.wire.hub import Hub


class Way(Enum):
    """A direction, as the one who connected sees it."""

    OUT = "out"
    BACK = "back"

    @property
    def other(self) -> Way:
        """The opposite one."""
        return Way.BACK if self is Way.OUT else Way.OUT


class Channel(Enum):
    """Protocol of a connection."""

    GRPC = "grpc"
    ZMQ = "zmq"
    REDIS = "redis"
    #: Whatever clients speak with routers.
    CLIENT = "client"


class Filter(Protocol):
    """Looks at each unit that passes, and decides what becomes of it."""

    def take(self, connection: Connection, way: Way, unit: bytes | Message) -> bool:
        """Whether it has dealt with `unit`; otherwise the unit goes on as it is."""
        ...


class Connection:
    """From `source` to `target`. A unit is a message of the connector, else bytes as they came."""

    def __init__(self, hub: Hub, source: str, target: str, channel: Channel) -> None:
        self.hub = hub
        self.source = source
        self.target = target
        self.channel = channel
        self._sides: dict[Way, asyncio.Transport] = {}
        self._early: list[bytes] = []
        self._readers = {way: ZmtpReader() for way in Way}
        self._held: dict[Way, list[bytes | Message]] = {}
        self._frozen = False
        self.closed = False

    def attach(self, way: Way, transport: asyncio.Transport) -> None:
        """`transport` is where bytes of this `way` are written to."""
        self._sides[way] = transport
        if self._frozen:
            transport.pause_reading()
        if way is Way.OUT:
            for data in self._early:
                self.received(way, data)
            self._early = []

    def received(self, way: Way, data: bytes) -> None:
        """Bytes have come from the other side."""
        if way not in self._sides:
            self._early.append(data)
            return
        units: list[bytes | Message] = [data]
        if self.channel is Channel.ZMQ:
            units = self._readers[way].feed(data)
        for unit in units:
            self.hub.observe(self, way, unit)
            self._pass(way, unit)

    def hold(self, way: Way) -> None:
        """Keep what comes from now on until `release`."""
        self._held.setdefault(way, [])

    def holds(self, way: Way) -> bool:
        """Whether bytes of this way are kept."""
        return way in self._held

    def release(self, way: Way) -> None:
        """Let go what was held, in order."""
        for unit in self._held.pop(way, []):
            self._pass(way, unit)

    def write(self, way: Way, unit: bytes | Message) -> None:
        """Send a unit on, past every filter."""
        transport = self._sides.get(way)
        if transport is not None and not transport.is_closing():
            transport.write(unit.encode() if isinstance(unit, Message) else unit)

    def cut(self) -> None:
        """End the connection with a reset on both sides, whatever was on its way."""
        self.closed = True
        for transport in self._sides.values():
            transport.abort()

    def freeze(self, *, frozen: bool) -> None:
        """Stop reading on both sides, without closing, or start it again."""
        self._frozen = frozen
        for transport in self._sides.values():
            if transport.is_closing():
                continue
            if frozen:
                transport.pause_reading()
            else:
                transport.resume_reading()

    def choke(self, way: Way, *, choked: bool) -> None:
        """The side that `way` is written to is full: read no more from the other."""
        transport = self._sides.get(way.other)
        if transport is None or transport.is_closing() or self._frozen:
            return
        if choked:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def lost(self, way: Way) -> None:
        """The side that `way` is written to is gone."""
        if self._frozen:
            return
        self.closed = True
        for transport in self._sides.values():
            transport.close()
        self.hub.forget(self)

    def _pass(self, way: Way, unit: bytes | Message) -> None:
        if way in self._held:
            self._held[way].append(unit)
        elif not self.hub.filtered(self, way, unit):
            self.write(way, unit)
