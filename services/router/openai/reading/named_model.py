"""The model that a body names, read before the body is checked."""

from __future__ import annotations

import msgspec


class _Named(msgspec.Struct):
    model: str | None = None


def named_model(raw: bytes) -> str | None:
    """Return the field `model` of a body.

    None without one, or for what is no JSON or no text: the endpoint reports that.
    """
    try:
        return msgspec.json.decode(raw, type=_Named).model
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
