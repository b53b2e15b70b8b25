"""The HTTP server's protocol, with limits on a connection until its request is complete.

The parser and the server have no such limits: a head may have any size and arrive at any rate.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from services.router.openai.errors import error_json

if TYPE_CHECKING:
    import asyncio

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from shared.generation.limits import RequestLimits

#: Bytes of chunked encoding allowed per byte of a body: a size, two line ends, and the byte.
_FRAMING_PER_BYTE = 8


class LimitedProtocol(HttpToolsProtocol):
    """One connection. Between two requests the server's own idle timeout applies."""

    limits: RequestLimits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuse the connection if there are too many; otherwise start the timeout of its head."""
        super().connection_made(transport)
        self._timer: asyncio.TimerHandle | None = None
        self._in_head = self._in_body = False
        #: Of the message that is being read: bytes of its body, and all other bytes.
        self._num_body_bytes = 0
        self._num_other_bytes = 0
        self._crossed = False
        if len(self.connections) > self.limits.max_connections:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections; try again later")
        else:
            self._wait(self.limits.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer of a closed connection."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes of one or several requests."""
        if self.transport.is_closing():
            return
        self._crossed = False
        num_before = self._num_body_bytes
        super().data_received(data)
        if self.transport.is_closing():
            return
        if not self._crossed:
            # Bytes that came with the end of a head or of a message are at most one read; not
            # counted.
            self._num_other_bytes += len(data) - (self._num_body_bytes - num_before)
            allowed = self.limits.max_header_bytes + _FRAMING_PER_BYTE * self._num_body_bytes
            if self._num_other_bytes > allowed:
                self._refuse_head()
        self._time_head()

    def on_message_begin(self) -> None:
        """Reset the counters at the first byte of a request."""
        super().on_message_begin()
        self._in_head = True
        self._num_body_bytes = self._num_other_bytes = 0

    def on_headers_complete(self) -> None:
        """Serve a request whose head is complete, or refuse it, in the order of requests."""
        self._crossed = True
        num_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        too_large = num_bytes > self.limits.max_header_bytes
        if too_large or len(self.headers) > self.limits.max_headers:
            self.app = _HeadTooLarge(self._head_problem())
        try:
            super().on_headers_complete()
        finally:
            self.app = self.config.loaded_app
        self._in_head, self._in_body = False, True
        self._wait(self.limits.body_timeout_s)

    def on_body(self, body: bytes) -> None:
        """Count and pass on a part of the body."""
        self._num_body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop the body's timeout at the last byte of a request."""
        super().on_message_complete()
        self._crossed = True
        self._in_body = False
        self._stop_waiting()

    def on_response_complete(self) -> None:
        """Restart the timeout of a head: a part of the next one may have arrived already."""
        super().on_response_complete()
        self._time_head()

    def send_400_response(self, msg: str) -> None:
        """Answer data that is not HTTP with status 400 and an error as JSON, and disconnect."""
        self._refuse(HTTPStatus.BAD_REQUEST, msg)

    def _time_head(self) -> None:
        if self._in_head and self._timer is None and not self._is_answering():
            self._unset_keepalive_if_required()
            self._wait(self.limits.header_timeout_s)

    def _is_answering(self) -> bool:
        cycle = self._latest()
        return cycle is not None and not cycle.response_complete

    def _latest(self) -> RequestResponseCycle | None:
        return self.cycle  # the server's annotation lacks None

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(seconds, self._too_slow)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if self.pipeline:
            # The server itself does not read: an earlier request is still being answered.
            self._wait(self.limits.body_timeout_s)
        elif not self.transport.is_closing():
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, "the request did not arrive in time")

    def _head_problem(self) -> HTTPException:
        limits = self.limits
        message = (
            f"the request's head must have at most {limits.max_header_bytes} bytes and "
            f"{limits.max_headers} headers"
        )
        return HTTPException(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message)

    def _refuse_head(self) -> None:
        problem = self._head_problem()
        self._refuse(HTTPStatus(problem.status_code), problem.detail)

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        """Answer with an error and disconnect; only disconnect if an answer has begun."""
        self._stop_waiting()
        if not (self._is_answering() and self.cycle.response_started):
            body = error_json(HTTPException(status, message), request_id="")
            head = (
                b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(STATUS_LINE[status] + head % len(body) + body)
        self.transport.close()


class _HeadTooLarge:
    """An application that refuses every request."""

    def __init__(self, problem: HTTPException) -> None:
        self._problem = problem

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        response = Response(
            error_json(self._problem, request_id=""),
            status_code=self._problem.status_code,
            headers={"connection": "close"},
            media_type="application/json",
        )
        await response(scope, receive, send)


def limited_protocol(limits: RequestLimits) -> type[LimitedProtocol]:
    """Return the protocol class for these limits; the server makes its objects."""
    return type("LimitedProtocol", (LimitedProtocol,), {"limits": limits})
