"""An HTTP server for an ASGI application."""

from __future__ import annotations

import asyncio
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvicorn

from services.router.doors.direct_body import DirectBody
from services.router.doors.http_protocol import limited_protocol
from services.router.doors.slow_clients import STALL_S, SlowClients
from services.router.openai.replies.sse import DIRECT_BODY, DIRECT_SEND
from shared.address import bare_host, family_of, join_address
from shared.errors import ConfigError
from shared.generation.limits import DEFAULT_LIMITS, RequestLimits

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    from starlette.types import ASGIApp, Receive, Scope, Send

BACKLOG = 2048


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle no signals: `__main__` handles them."""
        yield


class HttpServer:
    """One listening HTTP server."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        drain_grace_s: float,
        client_stall_s: float = STALL_S,
        limits: RequestLimits = DEFAULT_LIMITS,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Make a server.

        A connection is closed if its client reads nothing for `client_stall_s`.
        """
        self._client_stall_s = client_stall_s
        self._server = _Server(
            uvicorn.Config(
                _with_direct_send(app),
                # httptools, in C: h11, in Python, took as long per event as all other code
                # together.
                http=limited_protocol(limits),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_keep_alive=round(max(limits.idle_timeout_s, 1)),
                timeout_graceful_shutdown=max(1, round(drain_grace_s)),
                ssl_context_factory=None if tls is None else lambda *_: tls,
            )
        )
        self._task: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self.port = 0

    async def start(
        self,
        host: str,
        port: int,
        *,
        share_port: bool = False,
        own_port: int | None = None,
        share_own_port: bool = False,
    ) -> None:
        """Bind (port 0: a free port) and serve.

        `share_port`: other processes may listen on `port`, too, and the system distributes
        connections among them. `own_port` is one more, of this process alone,
        unless `share_own_port`.

        Raises:
            ConfigError: an address cannot be bound.
        """
        listeners = [_listen(host, port, share=share_port)]
        self.port = listeners[0].getsockname()[1]
        if own_port is not None:
            listeners.append(_listen(host, own_port, share=share_own_port))
        self._task = asyncio.create_task(self._server.serve(listeners))
        slow_clients = SlowClients(
            lambda: self._server.server_state.connections, stall_s=self._client_stall_s
        )
        self._sweeping = asyncio.create_task(slow_clients.run())

    async def stop(self) -> None:
        """Accept no new connections; wait for running requests up to the grace period."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        if self._sweeping is not None:
            self._sweeping.cancel()


def _listen(host: str, port: int, *, share: bool) -> socket.socket:
    family = family_of(host)
    try:
        return socket.create_server(
            (bare_host(host), port),
            family=family,
            backlog=BACKLOG,
            reuse_port=share,
            dualstack_ipv6=family == socket.AF_INET6,
        )
    except OSError as error:
        message = f"cannot listen on {join_address(host, port)}: {error.strerror or error}"
        raise ConfigError(message) from error


def _with_direct_send(app: ASGIApp) -> ASGIApp:
    """Give streams the server's own `send`, and its connection.

    Every layer of the framework wraps `send` to see the beginning of a response; events of a stream
    do not need these layers.
    """

    async def with_direct_send(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        extensions = scope.setdefault("extensions", {})
        extensions[DIRECT_SEND] = send
        body = DirectBody.of(send)
        if body is not None:
            extensions[DIRECT_BODY] = body
        try:
            await app(scope, receive, send)
        finally:
            # `send` refers to the server's object of this request, which refers to the scope. This
            # cycle would keep the whole request until the next full garbage collection.
            del extensions[DIRECT_SEND]
            extensions.pop(DIRECT_BODY, None)

    return with_direct_send
