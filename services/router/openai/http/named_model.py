"""The model that a request names: in its body, which is checked later, or in its query."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from starlette.requests import Request


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


def asked_model(request: Request) -> str | None:
    """Return the query's `model`; None without one: all models, or the default one."""
    return request.query_params.get("model") or None
