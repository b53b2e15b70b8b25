"""Where the numbers of a GGUF header are: counts, lengths, types, sizes and offsets."""

from __future__ import annotations

import struct
from dataclasses import dataclass

#: Bytes of a value, by the number of its type; texts and lists are longer.
_VALUE_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_TEXT, _LIST = 8, 9


@dataclass(frozen=True)
class Field:
    """A number of a header."""

    place: int
    size: int
    #: What it is: `count`, `length`, `type`, `value`, `dims`, `dim`, `kind` or `offset`.
    what: str


def fields(data: bytes) -> list[Field]:
    """All numbers of a header, but for those inside of lists."""
    return _Walk(data).fields()


class _Walk:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._found: list[Field] = []

    def fields(self) -> list[Field]:
        self._at = 4
        self._number("version", 4)
        num_tensors, num_values = self._number("count", 8), self._number("count", 8)
        for _ in range(num_values):
            self._text()
            self._value(self._number("type", 4))
        for _ in range(num_tensors):
            self._text()
            for _ in range(self._number("dims", 4)):
                self._number("dim", 8)
            self._number("kind", 4)
            self._number("offset", 8)
        return self._found

    def _number(self, what: str, size: int) -> int:
        self._found.append(Field(self._at, size, what))
        self._at += size
        (value,) = struct.unpack_from({4: "<I", 8: "<Q"}[size], self._data, self._at - size)
        return int(value)

    def _text(self) -> None:
        length = self._number("length", 8)
        self._at += length

    def _value(self, kind: int) -> None:
        if kind == _TEXT:
            self._text()
        elif kind != _LIST:
            self._found.append(Field(self._at, _VALUE_BYTES[kind], "value"))
            self._at += _VALUE_BYTES[kind]
        else:
            inner, count = self._number("type", 4), self._number("length", 8)
            if inner != _TEXT:
                self._at += count * _VALUE_BYTES[inner]
                return
            found = self._found
            self._found = []
            for _ in range(count):
                self._text()
            # One of many: all lists of texts are read alike.
            self._found = found + self._found[:1]
