"""Check of API keys: endpoints get the caller of each request."""

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
    """Maps keys to callers; services/router/admission/keys/key_ring.py is the real one."""

    def caller(self, headers: Iterable[tuple[bytes, bytes]]) -> Caller:
        """Return the caller of a request with these headers.

        Raises:
            AuthenticationError: the headers have no valid key.
        """
        ...


class AuthMiddleware:
    """Checks keys before routing: every path that is not named here needs a key.

    That includes paths that do not exist.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Authenticator,
        open_metrics: bool,
        open_paths: frozenset[str] = frozenset(),
    ) -> None:
        """Wrap `app`.

        `open_paths` need no key, like the probes: their files are the same everywhere.
        """
        self._app = app
        self._keys = keys
        self._open_paths = OPEN_PATHS | open_paths | ({METRICS_PATH} if open_metrics else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
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
