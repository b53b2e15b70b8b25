"""The HTTP server's protocol with limits on what a connection may cost before a request is whole.

The parser and the server have none: a head may be of any size, and arrive a byte an hour.
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

    from services.router.request.limits import RequestLimits

#: What a byte of a body may cost in the chunked encoding: a size, two line ends, and itself.
_FRAMING_PER_BYTE = 8


class LimitedProtocol(HttpToolsProtocol):
    """One connection. Between two requests the server's own idle time counts."""

    limits: RequestLimits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        self._timer: asyncio.TimerHandle | None = None
        self._in_head = self._in_body = False
        #: Of the message that is being read: bytes of its body, and all others.
        self._num_body_bytes = 0
        self._num_other_bytes = 0
        self._crossed = False
        if len(self.connections) > self.limits.max_connections:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections; try again later")
        else:
            self._wait(self.limits.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some bytes of one or several requests."""
        if self.transport.is_closing():
            return
        self._crossed = False
        num_before = self._num_body_bytes
        super().data_received(data)
        if self.transport.is_closing():
            return
        if not self._crossed:
            # What came with the end of a head or of a message is one read's worth, and forgiven.
            self._num_other_bytes += len(data) - (self._num_body_bytes - num_before)
            allowed = self.limits.max_header_bytes + _FRAMING_PER_BYTE * self._num_body_bytes
            if self._num_other_bytes > allowed:
                self._refuse_head()
        self._time_head()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._in_head = True
        self._num_body_bytes = self._num_other_bytes = 0

    def on_headers_complete(self) -> None:
        """A head is whole: it is served, or refused by an answer in its turn."""
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
        """A part of the body."""
        self._num_body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The last byte of a request."""
        super().on_message_complete()
        self._crossed = True
        self._in_body = False
        self._stop_waiting()

    def on_response_complete(self) -> None:
        """An answer is whole; the next head may have come in part already."""
        super().on_response_complete()
        self._time_head()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP with status 400, in the shape of other errors, and hang up."""
        self._refuse(HTTPStatus.BAD_REQUEST, msg)

    def _time_head(self) -> None:
        if self._in_head and self._timer is None and not self._is_answering():
            self._unset_keepalive_if_required()
            self._wait(self.limits.header_timeout_s)

    def _is_answering(self) -> bool:
        cycle = self._latest()
        return cycle is not None and not cycle.response_complete

    def _latest(self) -> RequestResponseCycle | None:
        return self.cycle  # the server's own annotation leaves out that there may be none yet

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
            # It is we who do not read: a request before this one is still being answered.
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
        """Answer and hang up; only hang up where an answer has begun."""
        self._stop_waiting()
        if not (self._is_answering() and self.cycle.response_started):
            body = error_json(HTTPException(status, message), request_id="")
            head = (
                b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(STATUS_LINE[status] + head % len(body) + body)
        self.transport.close()


class _HeadTooLarge:
    """An application that refuses its one request."""

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
    """The protocol class for a server with these limits; the server makes its objects."""
    return type("LimitedProtocol", (LimitedProtocol,), {"limits": limits})
