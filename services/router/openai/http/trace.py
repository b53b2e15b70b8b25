"""The client's trace context, recorded for its request. Used only if the router traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.telemetry.trace_context import INCOMING, Incoming, headers_in

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

#: The only path whose operation is not a chat.
_COMPLETIONS = "/v1/completions"


class TraceMiddleware:
    """Middleware that reads `traceparent` and `tracestate`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http":
            operation = "text_completion" if scope["path"] == _COMPLETIONS else "chat"
            INCOMING.set(Incoming(headers_in(scope["headers"]), operation))
        await self._app(scope, receive, send)
