"""How deep JSON is nested, found out without parsing it: parsers recurse, and their users too."""

from __future__ import annotations

import re

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKETS = b"[]{}"
_OTHERS = bytes(byte for byte in range(256) if byte not in _BRACKETS)


def is_too_deep(text: bytes, max_depth: int) -> bool:
    """Whether lists and objects are nested more than `max_depth` levels deep.

    Every level costs one pass over the brackets that are left, so the work is bounded whatever the
    text holds. What is no JSON may pass; a parser says so better.
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
