"""The field that a misspelt one was probably meant to be."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Share of equal characters. `max_token` is meant to be `max_tokens`; `mood` to be nothing.
_CUTOFF = 0.8
_MAX_CHARS = 64


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the name in `known` that `name` is nearest to; None if none is near."""
    # Clients choose names, and the comparison takes time that grows with the square of the length.
    if len(name) > _MAX_CHARS:
        return None
    return next(iter(get_close_matches(name.lower(), list(known), n=1, cutoff=_CUTOFF)), None)
