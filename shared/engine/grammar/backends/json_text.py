"""A grammar of the JSON strings whose contents are the texts of another grammar.

Every character of a text has one spelling: itself, or the shortest escape where JSON demands one.
So the other spellings, such as `\\u00e9` for é, are not in the grammar, and no text is lost.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Ranges = Sequence[tuple[int, int]]

_LAST = 0x10FFFF
_SHORT = {0x22: '"', 0x5C: "\\", 8: "b", 9: "t", 10: "n", 12: "f", 13: "r"}
#: What JSON's strings hold as it is.
_PLAIN: Ranges = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, _LAST))
_PART = re.compile(
    r'"(?P<text>(?:[^"\\]|\\.)*)"'
    r"|\[(?P<not>\^?)(?P<class>(?:[^\]\\]|\\.)*)\]"
    r"|(?P<same>[A-Za-z_][\w.-]*(?![\w.(-])|::=|\{\d+(?:, ?-?\d+)?\}|\((?!=)|[)|*+?]|\s+)",
    re.DOTALL,
)
_CHARACTER = re.compile(
    r"\\x(?P<x>[0-9a-fA-F]{2})|\\u(?P<u>[0-9a-fA-F]{4})|\\U(?P<U>[0-9a-fA-F]{8})"
    r"|\\(?P<escape>.)|(?P<plain>[^\\])",
    re.DOTALL,
)
_ESCAPES = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "b": 8, "0": 0, "a": 7, "e": 27}


class UnknownNotationError(ValueError):
    """The grammar has something other than texts, classes of characters, and rules of them."""


def in_json_string(grammar: str) -> str:
    """Return a grammar in xgrammar's notation, as the library prints it, within a JSON string.

    The quotes around the string are not part of it.

    Raises:
        UnknownNotationError: the grammar has something that says nothing of single characters.
    """
    parts, at = [], 0
    while at < len(grammar):
        part = _PART.match(grammar, at)
        if part is None:
            raise UnknownNotationError(grammar[at : at + 20].split("\n")[0])
        if part["text"] is not None:
            parts.append(_literal("".join(_escaped(c) for c, _ in _characters(part["text"]))))
        elif part["class"] is not None:
            ranges = _ranges(part["class"])
            parts.append(_class(_others(ranges) if part["not"] else ranges))
        else:
            parts.append(part["same"])
        at = part.end()
    return "".join(parts)


def _characters(text: str) -> Iterator[tuple[int, bool]]:
    """Yield each character's number, and whether it was written plainly."""
    for found in _CHARACTER.finditer(text):
        code = found["x"] or found["u"] or found["U"]
        if code is not None:
            yield int(code, 16), False
        elif found["escape"] is not None:
            yield _ESCAPES.get(found["escape"], ord(found["escape"])), False
        else:
            yield ord(found["plain"]), True


def _ranges(text: str) -> list[tuple[int, int]]:
    """Return the ranges of a class, in order and apart."""
    codes, found = list(_characters(text)), []
    at = 0
    while at < len(codes):
        first = last = codes[at][0]
        at += 1
        if at + 1 < len(codes) and codes[at] == (ord("-"), True):
            last = codes[at + 1][0]
            at += 2
        found.append((first, last))
    return _joined(found)


def _joined(ranges: Ranges) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return joined


def _others(ranges: Ranges) -> list[tuple[int, int]]:
    """Return the characters that are in none of these ranges."""
    found, at = [], 0
    for first, last in ranges:
        if first > at:
            found.append((at, first - 1))
        at = last + 1
    return [*found, (at, _LAST)] if at <= _LAST else found


def _common(some: Ranges, others: Ranges) -> list[tuple[int, int]]:
    pairs = ((max(a, c), min(b, d)) for a, b in some for c, d in others)
    return [(first, last) for first, last in pairs if first <= last]


def _class(ranges: Ranges) -> str:
    """Return the choice among the spellings of these characters."""
    plain = _common(ranges, _PLAIN)
    choices = []
    if plain:
        inside = "".join(f"{_char(first)}-{_char(last)}" for first, last in plain)
        choices.append(f"[{inside}]")
    special = _common(ranges, ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)))
    codes = [code for first, last in special for code in range(first, last + 1)]
    short = [_char(ord(_SHORT[code])) for code in codes if code in _SHORT]
    if short:
        choices.append(_one_of("\\", short))
    for digit in "01":
        long = [
            f"{code:02x}"[1] for code in codes if code not in _SHORT and code >> 4 == int(digit)
        ]
        if long:
            choices.append(_one_of(f"\\u00{digit}", long))
    if not choices:
        raise UnknownNotationError("a class without characters")
    return f"({' | '.join(choices)})"


def _one_of(before: str, ends: Sequence[str]) -> str:
    return f"{_literal(before)} [{''.join(ends)}]"


def _escaped(code: int) -> str:
    """Return a character as JSON's strings have it."""
    if code in _SHORT:
        return "\\" + _SHORT[code]
    return f"\\u{code:04x}" if code < 0x20 else chr(code)


def _literal(text: str) -> str:
    return '"' + "".join(_char(ord(char)) for char in text) + '"'


def _char(code: int) -> str:
    """Return a character in xgrammar's notation. Its `\\x` may have any number of digits."""
    char = chr(code)
    if code < 0x80 and char.isalnum():
        return char
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
