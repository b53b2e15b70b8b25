"""Lets requests with a key in, and tells the endpoints whose they are."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

from starlette.exceptions import HTTPException

from services.router.doors.error_handlers import error_response
from services.router.openai.auth import METRICS_PATH, OPEN_PATHS, OPERATOR_PATHS
from shared.errors import AuthenticationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import ASGIApp, Receive, Scope, Send

    from services.router.admission.caller import Caller


class Authenticator(Protocol):
    """Knows every key; services/router/admission/keys.py is the real one."""

    def caller(self, headers: Iterable[tuple[bytes, bytes]]) -> Caller:
        """Whose request has these headers.

        Raises:
            AuthenticationError: the headers have no key that is known.
        """
        ...


class AuthMiddleware:
    """Stands before routing: a path is closed unless it is named here, whether it exists or not."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Authenticator,
        open_metrics: bool,
        open_paths: frozenset[str] = frozenset(),
    ) -> None:
        """`open_paths` are open besides the probes: files that hold nothing of the cluster."""
        self._app = app
        self._keys = keys
        self._open_paths = OPEN_PATHS | open_paths | ({METRICS_PATH} if open_metrics else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, if it may be served."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] == "http" and scope["path"] not in self._open_paths:
            state = scope.setdefault("state", {})
            try:
                state["caller"] = self._admit(scope)
            except (AuthenticationError, HTTPException) as error:
                refusal = error_response(
                    error, path=scope["path"], request_id=state.get("request_id", "")
                )
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _admit(self, scope: Scope) -> Caller:
        caller = self._keys.caller(scope["headers"])
        if scope["path"] in OPERATOR_PATHS and not caller.is_operator:
            raise HTTPException(HTTPStatus.FORBIDDEN, "this needs a key of an operator")
        return caller
