"""ZeroMQ's wire protocol as far as a proxy needs it: ZMTP 3.x, https://rfc.zeromq.org/spec/23/."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from shared.connector.protocol.frame import ID_BYTES, MAGIC, Kind

_GREETING_BYTES = 64
_MORE, _LONG, _COMMAND = 1, 2, 4
_LONG_SIZE = struct.Struct(">Q")
_SHORT_LIMIT = 255
#: Of connector/protocol/frame.py: magic, version, kind, reason, zero, then the transfer's id.
_KIND_AT, _ID_AT = 5, 8


@dataclass(slots=True)
class Message:
    """One message of the connector: its frame, and the parts of its payload."""

    parts: list[bytes]

    @property
    def kind(self) -> Kind | None:
        """What the frame says, if it is one."""
        frame = self.parts[0]
        if len(frame) <= _ID_AT + ID_BYTES or not frame.startswith(MAGIC):
            return None
        try:
            return Kind(frame[_KIND_AT])
        except ValueError:
            return None

    @property
    def transfer_id(self) -> bytes:
        """Whose it is."""
        return self.parts[0][_ID_AT : _ID_AT + ID_BYTES]

    def encode(self) -> bytes:
        """As it stands on the wire."""
        last = len(self.parts) - 1
        return b"".join(_frame(part, more=place < last) for place, part in enumerate(self.parts))


def _frame(body: bytes, *, more: bool) -> bytes:
    flags = _MORE if more else 0
    if len(body) > _SHORT_LIMIT:
        return bytes([flags | _LONG]) + _LONG_SIZE.pack(len(body)) + body
    return bytes([flags, len(body)]) + body


class ZmtpReader:
    """Cuts one direction of a connection into messages. Greeting and commands stay raw."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._greeting_left = _GREETING_BYTES
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes | Message]:
        """Take bytes, cut anywhere; give what is complete, in order."""
        out: list[bytes | Message] = []
        if self._greeting_left:
            raw, data = data[: self._greeting_left], data[self._greeting_left :]
            self._greeting_left -= len(raw)
            out.append(raw)
        self._rest += data
        while (frame := self._next()) is not None:
            flags, raw, body = frame
            if flags & _COMMAND:
                out.append(raw)
                continue
            self._parts.append(body)
            if not flags & _MORE:
                out.append(Message(self._parts))
                self._parts = []
        return out

    def _next(self) -> tuple[int, bytes, bytes] | None:
        """Flags, the frame's bytes, its body."""
        rest = self._rest
        if len(rest) < 2:
            return None
        start = 9 if rest[0] & _LONG else 2
        if len(rest) < start:
            return None
        size = _LONG_SIZE.unpack_from(rest, 1)[0] if rest[0] & _LONG else rest[1]
        end = start + size
        if len(rest) < end:
            return None
        frame = rest[0], bytes(rest[:end]), bytes(rest[start:end])
        del rest[:end]
        return frame
