"""Fields of a request that nothing reads: reported in the response and in the log, or refused."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import structlog

from services.router.openai.errors import FieldError
from services.router.openai.http.nearest import nearest
from services.router.openai.schema.base import RequestObject

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = structlog.get_logger(__name__)

HEADER = b"x-baton-ignored"
#: What the names were probably meant to be, and where all fields are.
HINT_HEADER = b"x-baton-fields"
LIST = "GET /openapi.json lists the fields"
#: Bounds on reported names, which clients choose.
MAX_NAMES = 16
MAX_NAME_CHARS = 64
MAX_LOGGED_NAMES = 256
_MORE = "..."
_PLAIN = frozenset({int, float, str, bool, type(None)})
_ODD = re.compile(r"[^A-Za-z0-9_.\[\]-]")


class UnknownFields:
    """Handles the unknown fields of requests."""

    def __init__(self, *, strict: bool = False) -> None:
        """Set the handling; `strict`: refuse requests with unknown fields."""
        self._strict = strict
        self._logged: set[str] = set()

    def check(self, request: Request, body: RequestObject) -> None:
        """Record the unread fields of `body`, for the response's header.

        Raises:
            FieldError: there are some, and they are refused here.
        """
        names = unknown_fields(body)
        if not names:
            return
        if self._strict:
            message = f"unknown fields are refused here: {', '.join(names)}; {_hint(names)}"
            raise FieldError(message, param=next(iter(names)), code="unknown_parameter")
        for name in names:
            self._log(name, names[name])
        request.state.ignored_fields = ", ".join(names)
        request.state.fields_hint = _hint(names)

    def _log(self, name: str, meant: str | None) -> None:
        """Log a name once, up to a number of names."""
        if name in self._logged or len(self._logged) >= MAX_LOGGED_NAMES or name == _MORE:
            return
        self._logged.add(name)
        # The name only: values may be private.
        logger.warning("field_ignored", field=name, nearest=meant)


class IgnoredFieldsMiddleware:
    """Adds the header to the response of a request with unread fields."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})

        async def send_with_names(message: Message) -> None:
            if message["type"] == "http.response.start" and "ignored_fields" in state:
                message["headers"] = [
                    *message.get("headers", ()),
                    (HEADER, state["ignored_fields"].encode("ascii")),
                    (HINT_HEADER, state["fields_hint"].encode("ascii")),
                ]
            await send(message)

        await self._app(scope, receive, send_with_names)


def unknown_fields(body: RequestObject) -> dict[str, str | None]:
    """Return each name once, valid in a header, and the nearest field.

    The last entry tells if there are more.
    """
    names: dict[str, str | None] = {}
    for name, meant in _unknown(body, ""):
        if len(names) == MAX_NAMES and name not in names:
            return names | {_MORE: None}
        names[name] = meant
    return names


def _hint(names: Mapping[str, str | None]) -> str:
    meant = [f"{name} is nearest to {near}" for name, near in names.items() if near is not None]
    return "; ".join([*meant, LIST])


def _unknown(value: RequestObject, path: str) -> Iterator[tuple[str, str | None]]:
    known, fields = type(value).ignored, type(value).model_fields
    for name, given in (value.model_extra or {}).items():
        # null is the same as absent.
        if given is not None and name not in known:
            meant = nearest(name, fields)
            shown = _ODD.sub("?", f"{path}{name}"[:MAX_NAME_CHARS])
            yield shown, None if meant is None else f"{path}{meant}"
    for name in value.model_fields_set:
        if name in type(value).model_fields:
            yield from _unknown_inside(getattr(value, name), f"{path}{name}")


def _unknown_inside(value: Any, path: str) -> Iterator[tuple[str, str | None]]:
    if isinstance(value, RequestObject):
        yield from _unknown(value, f"{path}.")
    # A prompt may be a million token ids: such a list is searched at once.
    elif isinstance(value, list) and not _PLAIN.issuperset(map(type, value)):
        for item in value:
            yield from _unknown_inside(item, f"{path}[]")
