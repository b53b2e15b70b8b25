"""Server-sent events: from bytes, cut anywhere, to the data of whole events."""

from __future__ import annotations


class EventDecoder:
    """Keeps what is not yet a whole event. Comments and other fields are dropped."""

    def __init__(self) -> None:
        self._rest = b""
        self._lines: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes, give the data of the events that they complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._lines.append(line[5:].removeprefix(b" "))
            elif not line and self._lines:
                events.append(b"\n".join(self._lines))
                self._lines = []
        return events
