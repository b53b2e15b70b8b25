"""Fields of a request that nothing reads: reported in the response and in the log, or refused."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import structlog

from services.router.openai.errors import FieldError
from services.router.openai.schema.base import RequestObject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = structlog.get_logger(__name__)

HEADER = b"x-baton-ignored"
#: Bounds on reported names, which clients choose.
MAX_NAMES = 16
MAX_NAME_CHARS = 64
MAX_LOGGED_NAMES = 256
_MORE = "..."
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
            message = f"unknown fields are refused here: {', '.join(names)}"
            raise FieldError(message, param=names[0], code="unknown_parameter")
        for name in names:
            self._log(name)
        request.state.ignored_fields = ", ".join(names)

    def _log(self, name: str) -> None:
        """Log a name once, up to a number of names."""
        if name in self._logged or len(self._logged) >= MAX_LOGGED_NAMES or name == _MORE:
            return
        self._logged.add(name)
        # The name only: values may be private.
        logger.warning("field_ignored", field=name)


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
                header = (HEADER, state["ignored_fields"].encode("ascii"))
                message["headers"] = [*message.get("headers", ()), header]
            await send(message)

        await self._app(scope, receive, send_with_names)


def unknown_fields(body: RequestObject) -> list[str]:
    """Return each name once, valid in a header; the last entry tells if there are more."""
    names: dict[str, None] = {}
    for name in _unknown(body, ""):
        if len(names) == MAX_NAMES and name not in names:
            return [*names, _MORE]
        names[name] = None
    return list(names)


def _unknown(value: RequestObject, path: str) -> Iterator[str]:
    known = type(value).ignored
    for name, given in (value.model_extra or {}).items():
        # null is the same as absent.
        if given is not None and name not in known:
            yield _ODD.sub("?", f"{path}{name}"[:MAX_NAME_CHARS])
    for name in value.model_fields_set:
        if name in type(value).model_fields:
            yield from _unknown_inside(getattr(value, name), f"{path}{name}")


def _unknown_inside(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, RequestObject):
        yield from _unknown(value, f"{path}.")
    elif isinstance(value, list):
        for item in value:
            yield from _unknown_inside(item, f"{path}[]")
