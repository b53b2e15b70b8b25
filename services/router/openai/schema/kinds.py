"""Lists whose elements are told apart by their `type`: which types there are, and good errors.

Pydantic's own unions name their members in the place of an error and list every attempt; here the
place is the client's (`input[2].content[0].text`), and what is not offered is said by name.
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
    """A check before validation: an object of one of these types. `what` is for the message.

    Where `default` is given, an object without a type is of that one.
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
    """Chooses the member of a union whose tag is the object's type in brackets.

    The brackets keep tags and fields apart in the place of an error. Types of `same` share the
    member of another one.
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
    """Before validation: a plain string is one part of this type."""

    def parts(value: Any) -> Any:
        return [{"type": kind, "text": value}] if isinstance(value, str) else value

    return parts
