"""Depth of nested JSON, found without parsing: parsers and their callers recurse."""

from __future__ import annotations

import re

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKETS = b"[]{}"
_OTHERS = bytes(byte for byte in range(256) if byte not in _BRACKETS)


def is_too_deep(text: bytes, max_depth: int) -> bool:
    """Return whether lists and objects are nested more than `max_depth` levels deep.

    Every level costs one pass over the remaining brackets, so the work is bounded for any text.
    Text that is not JSON may pass; the parser reports it with a better message.
    """
    if text.count(b"[") + text.count(b"{") <= max_depth:
        return False
    left = _STRING.sub(b"", text).translate(None, _OTHERS)
    for _ in range(max_depth):
        shorter = left.replace(b"[]", b"").replace(b"{}", b"")
        if len(shorter) == len(left):
            break
        left = shorter
    return bool(left)
