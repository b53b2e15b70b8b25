"""Reads numbers and texts from the bytes of a header, and never behind their end."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from shared.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

#: By the number of a value's type: its spelling for `struct`.
_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_TEXT, _LIST = 8, 9
_LENGTH_BYTES = 8


class Cursor:
    """A place in a header."""

    def __init__(self, path: Path, data: bytes, size: int) -> None:
        """data: the file's first bytes, of which the header has at most `size`."""
        self._path = path
        self._data = memoryview(data)
        self._size = size
        self.place = 0

    def number(self, what: str, kind: str = "Q") -> Any:
        """Return one number; kind: as `struct` spells it; what: its name in messages."""
        (value,) = self._unpack(what, kind, 1)
        return value

    def text(self, what: str) -> str:
        """Return a text, whose length is before it."""
        length = self.number(f"the length of {what}")
        piece = self._take(what, length)
        try:
            return str(piece, "utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not UTF-8: {error}") from error

    def value(self, what: str) -> Any:
        """Return a value, whose type is before it."""
        kind = self.number(f"the type of {what}", "I")
        return self._list(what) if kind == _LIST else self._single(what, kind)

    def error(self, why: str) -> ConfigError:
        """Return the error of this file."""
        return ConfigError(f"{self._path} is damaged or truncated: {why}")

    def _single(self, what: str, kind: int) -> Any:
        if kind == _TEXT:
            return self.text(what)
        if kind not in _NUMBERS:
            raise self.error(f"{what} has the unknown type {kind}")
        return self.number(what, _NUMBERS[kind])

    def _list(self, what: str) -> list[Any]:
        kind = self.number(f"the type of {what}", "I")
        count = self.number(f"the length of {what}")
        if kind == _TEXT:
            # Each has a length at least, so no more are tried than the header has room for.
            if count * _LENGTH_BYTES > self._size - self.place:
                raise self.error(f"{what} claims {count} texts")
            return [self.text(what) for _ in range(count)]
        if kind not in _NUMBERS:
            raise self.error(f"{what} is a list of the unknown type {kind}")
        return list(self._unpack(what, _NUMBERS[kind], count))

    def _unpack(self, what: str, kind: str, count: int) -> tuple[Any, ...]:
        piece = self._take(what, count * struct.calcsize(f"<{kind}"))
        return struct.unpack(f"<{count}{kind}", piece)

    def _take(self, what: str, num_bytes: int) -> memoryview:
        if num_bytes > self._size - self.place:
            raise self.error(f"{what} needs {num_bytes} bytes, {self._size - self.place} are left")
        piece = self._data[self.place : self.place + num_bytes]
        self.place += num_bytes
        return piece
