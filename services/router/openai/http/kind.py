"""Which endpoint a body is meant for."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


class _Kind(msgspec.Struct):
    messages: msgspec.Raw | UnsetType = UNSET
    input: msgspec.Raw | UnsetType = UNSET


def is_chat(raw: bytes) -> bool:
    """Return whether a body has `messages`; one that is no JSON has none."""
    return _kind(raw).messages is not UNSET


def is_embedding(raw: bytes) -> bool:
    """Return whether a body has `input`; one that is no JSON has none."""
    return _kind(raw).input is not UNSET


def _kind(raw: bytes) -> _Kind:
    try:
        return msgspec.json.decode(raw, type=_Kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Kind()
