"""What a bad network does to what passes it: late, lost, twice, swapped, cut short, changed."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING

from benchmarks.faults.wire.connection import Channel, Connection, Way
from benchmarks.faults.wire.zmtp import Message
from shared.connector.protocol.frame import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

#: The sign of every other little-endian float32. Larger damage gives NaN, which engines refuse
#: by themselves; this gives another answer, if no receiver compares checksums.
_FLIP_EVERY_BYTES = 8
_SIGN_BYTE, _SIGN_BIT = 3, 0x80


class Damage(Enum):
    """Kinds of damage to a unit on a wire."""

    DELAYED = "delayed"
    DROPPED = "dropped"
    DUPLICATED = "duplicated"
    REORDERED = "reordered"
    TRUNCATED = "truncated"
    CORRUPTED = "corrupted"
    #: Twice, the second time when the transfer is over and its blocks belong to others.
    LATE = "late"


class Damager:
    """A filter that damages the next `num_times` units on matching links, then none.

    On the connector a unit is a piece with its blocks; on gRPC it is whatever TCP has delivered.
    TCP itself never shows an application anything but *delayed* and *dropped* (a connection that
    ends); the others stand for broken middle boxes and memory, which DESIGN I4 covers.
    """

    def __init__(
        self,
        damage: Damage,
        matches: Callable[[Connection, Way], bool],
        *,
        num_times: int,
        delay_s: float,
    ) -> None:
        self._damage = damage
        self._matches = matches
        self._left = num_times
        self._delay_s = delay_s
        self._swapped: dict[tuple[Connection, Way], bytes | Message] = {}
        self.num_done = 0

    def take(self, connection: Connection, way: Way, unit: bytes | Message) -> bool:
        """See `Filter`."""
        first = self._swapped.pop((connection, way), None)
        if first is not None:
            connection.write(way, unit)
            connection.write(way, first)
            return True
        if not self._left or not self._matches(connection, way):
            return False
        if connection.channel is Channel.ZMQ and not _is_piece(unit):
            return False
        self._left -= 1
        self.num_done += 1
        self._do(connection, way, unit)
        return True

    def _do(self, connection: Connection, way: Way, unit: bytes | Message) -> None:
        match self._damage:
            case Damage.DELAYED:
                connection.hold(way)
                later(self._delay_s, lambda: self._late(connection, way, unit))
            case Damage.DROPPED:
                connection.cut()
            case Damage.DUPLICATED:
                connection.write(way, unit)
                connection.write(way, unit)
            case Damage.REORDERED:
                self._swapped[connection, way] = unit
                # Nothing may come behind it, and a lost piece is another fault.
                later(self._delay_s, lambda: self._alone(connection, way))
            case Damage.TRUNCATED:
                connection.write(way, truncated(unit))
                if connection.channel is Channel.GRPC:
                    later(0.05, connection.cut)
            case Damage.CORRUPTED:
                connection.write(way, flipped(unit))
            case Damage.LATE:
                connection.write(way, unit)
                later(self._delay_s, lambda: connection.write(way, flipped(unit)))

    def _late(self, connection: Connection, way: Way, unit: bytes | Message) -> None:
        connection.write(way, unit)
        connection.release(way)

    def _alone(self, connection: Connection, way: Way) -> None:
        unit = self._swapped.pop((connection, way), None)
        if unit is not None:
            connection.write(way, unit)


def later(delay_s: float, action: Callable[[], None]) -> None:
    """Call `action` after `delay_s`."""
    asyncio.get_running_loop().call_later(delay_s, action)


def _is_piece(unit: bytes | Message) -> bool:
    return isinstance(unit, Message) and unit.kind is Kind.PIECE


def truncated(unit: bytes | Message) -> bytes | Message:
    """The first half: of the last part of a message, of bytes as they are."""
    if isinstance(unit, Message):
        *others, last = unit.parts
        return Message([*others, last[: len(last) // 2]])
    return unit[: len(unit) // 2]


def flipped(unit: bytes | Message) -> bytes | Message:
    """The same, with bits of the KV flipped in a message, and one in the middle of other bytes."""
    if isinstance(unit, Message) and len(unit.parts) > 1:
        frame, *payload = unit.parts
        return Message([frame, *(_flip_floats(part) for part in payload)])
    if isinstance(unit, Message):
        return Message([_flip_one(unit.parts[0])])
    return _flip_one(unit)


def _flip_floats(data: bytes) -> bytes:
    changed = bytearray(data)
    for place in range(_SIGN_BYTE, len(changed), _FLIP_EVERY_BYTES):
        changed[place] ^= _SIGN_BIT
    return bytes(changed)


def _flip_one(data: bytes) -> bytes:
    changed = bytearray(data)
    changed[len(changed) // 2] ^= 1
    return bytes(changed)
