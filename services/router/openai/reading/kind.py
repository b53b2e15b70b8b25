"""Which of the two generating endpoints a body is meant for."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


class _Kind(msgspec.Struct):
    messages: msgspec.Raw | UnsetType = UNSET


def is_chat(raw: bytes) -> bool:
    """Return whether a body has `messages`; one that is no JSON has none."""
    try:
        return msgspec.json.decode(raw, type=_Kind).messages is not UNSET
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
