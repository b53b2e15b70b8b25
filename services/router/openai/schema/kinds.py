"""Unions whose members are distinguished by their `type`: the types, and clear errors.

Errors of pydantic's own unions contain the members' names in the path and list every attempt. Here
the path is the client's (`input[2].content[0].text`), and an unsupported type is named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Discriminator
from pydantic_core import PydanticCustomError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: The kind of error that becomes an UnsupportedError; see body.py.
UNSUPPORTED = "unsupported"


def only(what: str, *kinds: str, default: str | None = None) -> Callable[[Any], Any]:
    """Return a check before validation: an object of one of these types.

    `what` is for the message. With `default`, an object without a type has that type.
    """
    choice = " or ".join(kinds)

    def check(value: Any) -> Any:
        kind = _read_kind(value, default)
        if kind is None:
            message = "must be an object with a type of {choice}"
            raise PydanticCustomError("kind_type", message, {"choice": choice})
        if kind not in kinds:
            message = "{what} of type {kind} is not supported, only {choice} is"
            found = {"what": what, "kind": kind[:64], "choice": choice}
            raise PydanticCustomError(UNSUPPORTED, message, found)
        return value

    return check


def by_kind(default: str | None = None, *, same: Mapping[str, str] | None = None) -> Discriminator:
    """Return a discriminator: a member's tag is the object's type in brackets.

    The brackets distinguish tags from fields in the path of an error. Types in `same` use the
    member of another type.
    """
    renamed = same or {}

    def tag(value: Any) -> str | None:
        kind = _read_kind(value, default)
        return None if kind is None else f"({renamed.get(kind, kind)})"

    return Discriminator(tag)


def _read_kind(value: Any, default: str | None) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if kind is None and isinstance(value, dict):
        return default
    return kind if isinstance(kind, str) else None


def text_as(kind: str) -> Callable[[Any], Any]:
    """Return a conversion before validation: a plain string becomes one part of this type."""

    def parts(value: Any) -> Any:
        return [{"type": kind, "text": value}] if isinstance(value, str) else value

    return parts
