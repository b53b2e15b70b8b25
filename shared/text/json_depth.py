"""Depth of nested JSON, found without parsing: parsers and their callers recurse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Bytes that are looked at in one call: other threads run between two.
CHUNK_BYTES = 2**18
_QUOTE = ord('"')
#: By byte: what it adds to the depth.
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1


def is_too_deep(text: bytes, max_depth: int) -> bool:
    """Return whether lists and objects are nested more than `max_depth` levels deep.

    Every byte is looked at a fixed number of times, whatever the text. Text that is not JSON may
    pass; the parser reports it with a better message.
    """
    if text.count(b"[") + text.count(b"{") <= max_depth:
        return False
    if b"\\" in text:
        # Only strings have backslashes. From the left, pairs first: what is left is before a quote.
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    is_inside, depth = False, 0
    for start in range(0, len(text), CHUNK_BYTES):
        chunk = np.frombuffer(text, np.uint8, min(CHUNK_BYTES, len(text) - start), start)
        inside = _are_inside(chunk, is_inside=is_inside)
        steps = _STEPS[chunk]
        steps[inside] = 0
        depths = np.cumsum(steps, dtype=np.int32)
        if depth + int(depths.max()) > max_depth:
            return True
        is_inside, depth = bool(inside[-1]), depth + int(depths[-1])
    return False


def _are_inside(chunk: NDArray[np.uint8], *, is_inside: bool) -> NDArray[np.bool_]:
    """Return which bytes are in a string, its first quote included.

    `is_inside`: whether the byte before the chunk is.
    """
    quotes = chunk == _QUOTE
    quotes[0] ^= is_inside
    inside: NDArray[np.bool_] = np.logical_xor.accumulate(quotes)
    return inside
