"""The HTTP port beside gRPC: `/metrics` for Prometheus and `/health` for probes.

Kubelets use it if they cannot probe over gRPC (before 1.24, and with TLS): a probe that starts a
process takes a third of a second of the worker's CPU each time.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app

from shared.address import bare_host, family_of, join_address
from shared.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from prometheus_client import CollectorRegistry

#: Time for an answer of the event loop before the worker counts as stuck.
_LOOP_TIMEOUT_S = 5.0
_TEXT = ("Content-Type", "text/plain; charset=utf-8")


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: probes come every few seconds."""


def serve_metrics(
    registry: CollectorRegistry, host: str, port: int, *, is_serving: Callable[[], bool]
) -> Callable[[], None]:
    """Serve in a thread; return the function that stops it. Called on the event loop.

    `is_serving` is called on that loop, so that `/health` also reports a stuck loop: 200 if true,
    otherwise 503.

    Raises:
        ConfigError: the port is in use.
    """
    app = _app(registry, is_serving, asyncio.get_running_loop())
    kind = _Server6 if family_of(host) == socket.AF_INET6 else _Server
    try:
        server = make_server(bare_host(host), port, app, server_class=kind, handler_class=_Handler)
    except OSError as error:
        raise ConfigError(
            f"cannot serve metrics on {join_address(host, port)}: {error}; "
            "choose another --metrics-port"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


def _app(
    registry: CollectorRegistry, is_serving: Callable[[], bool], loop: asyncio.AbstractEventLoop
) -> WSGIApplication:
    metrics = make_wsgi_app(registry)

    async def ask() -> bool:
        return is_serving()

    def serving() -> bool:
        asked = asyncio.run_coroutine_threadsafe(ask(), loop)
        try:
            return asked.result(_LOOP_TIMEOUT_S)
        except TimeoutError:
            asked.cancel()
            return False

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/health":
            # Always the text format. Prometheus asks for OpenMetrics first, where
            # prometheus_client writes an underscore for the colon in vLLM's names.
            environ.pop("HTTP_ACCEPT", None)
            answer: Iterable[bytes] = metrics(environ, start_response)
            return answer
        if serving():
            start_response("200 OK", [_TEXT])
            return [b"serving\n"]
        start_response("503 Service Unavailable", [_TEXT])
        return [b"not serving\n"]

    return app
