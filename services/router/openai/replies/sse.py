"""Server-sent events: the transport of streamed answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import structlog
from starlette.responses import Response

from services.router.openai.errors import error_json, error_status
from services.router.openai.http.disconnect import unless_disconnected
from shared.errors import InternalError, RequestCancelledError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from services.router.openai.replies.answers import Part
    from services.router.openai.replies.client_tap import ClientTap, ResponseBody
    from services.router.request.generation import AnswerPiece

logger = structlog.get_logger(__name__)

_HEADERS = {
    "cache-control": "no-cache",
    # Tells reverse proxies not to buffer the stream.
    "x-accel-buffering": "no",
}

#: ASGI extensions: the server's own `send`, and the ResponseBody of a response that has begun.
DIRECT_SEND = "baton.direct_send"
DIRECT_BODY = "baton.direct_body"


class EventWriter(Protocol):
    """Converts pieces to the events of one endpoint."""

    def event(self, place: int, piece: AnswerPiece) -> bytes:
        """Return the events for one piece of an answer to the prompt at `place`; may be empty."""

    def last_event(self) -> bytes:
        """Return the events after all answers; may be empty."""


class StreamEdge(Protocol):
    """The end of streams in one API."""

    @property
    def done(self) -> bytes:
        """Data after the last event, and after an error."""

    def failed(self, error: Exception, *, request_id: str) -> bytes:
        """Return the event for an error; the status has been sent already."""


class DataEdge:
    """The end of streams of chat and completions."""

    done = b"data: [DONE]\n\n"

    def failed(self, error: Exception, *, request_id: str) -> bytes:
        """See StreamEdge."""
        return b"data: %b\n\n" % error_json(error, request_id=request_id)


DATA_EDGE = DataEdge()


class EventStream(Response):
    """Sends an event per piece until the pieces end or the client disconnects; closes `parts`."""

    media_type = "text/event-stream"

    def __init__(
        self,
        first: bytes,
        parts: AsyncGenerator[Part],
        writer: EventWriter,
        *,
        edge: StreamEdge,
        request_id: str,
        tap: ClientTap | None = None,
    ) -> None:
        """Begin with the event `first`. `tap`: the end of the outlet of `parts`."""
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._first = first
        self._parts = parts
        self._writer = writer
        self._edge = edge
        self._request_id = request_id
        self._tap = tap
        #: Set if a piece from the tap could not be written.
        self._failure: Exception | None = None
        self._sending: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the whole response."""
        try:
            await unless_disconnected(receive, self._send(scope, send))
        except RequestCancelledError:
            logger.debug("client_gone_while_streaming")
        finally:
            await self._parts.aclose()

    async def _send(self, scope: Scope, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        # The response has begun, so no middleware has to add anything.
        extensions = scope.get("extensions", {})
        send = extensions.get(DIRECT_SEND, send)
        self._sending = asyncio.current_task()
        if self._tap is not None and DIRECT_BODY in extensions:
            self._tap.open(extensions[DIRECT_BODY], self._write)
        try:
            last = await self._send_pieces(send)
        finally:
            self._sending = None
            if self._tap is not None:
                self._tap.close()
        await send(
            {"type": "http.response.body", "body": last + self._edge.done, "more_body": False}
        )

    async def _send_pieces(self, send: Send) -> bytes:
        """Send the events of all pieces; return the last event."""
        event = self._first
        while True:
            if event:
                await send({"type": "http.response.body", "body": event, "more_body": True})
            try:
                event = self._writer.event(*await anext(self._parts))
            except StopAsyncIteration:
                return self._writer.last_event()
            except asyncio.CancelledError:
                if self._failure is None or self._sending is None:
                    raise
                self._sending.uncancel()
                return self._failed(self._failure)
            except Exception as error:  # noqa: BLE001 the process edge: becomes an event
                return self._failed(error)

    def _failed(self, error: Exception) -> bytes:
        """Return the event of an error: the status has been sent."""
        logger.warning("stream_failed", status=error_status(error), error=repr(error))
        return self._edge.failed(error, request_id=self._request_id)

    def _write(self, body: ResponseBody, piece: AnswerPiece) -> None:
        """Write a piece from the tap, which comes while `_send_pieces` waits for the next one."""
        try:
            event = self._writer.event(0, piece)
        except Exception as error:  # noqa: BLE001 the process edge: `_send_pieces` sends it
            self._failure = error
            if self._tap is not None:
                self._tap.close()
            if self._sending is not None:
                self._sending.cancel()
            return
        if event:
            body.write(event)


async def stream_events(
    request: Request,
    parts: AsyncGenerator[Part],
    writer: EventWriter,
    *,
    edge: StreamEdge = DATA_EDGE,
    tap: ClientTap | None = None,
) -> Response:
    """Return a streamed response. An error before the first token gets a status of its own."""
    try:
        part = await unless_disconnected(request.receive, _first(parts))
        first = writer.event(*part)
    except BaseException:
        await parts.aclose()
        raise
    request_id = request.state.request_id
    return EventStream(first, parts, writer, edge=edge, request_id=request_id, tap=tap)


async def _first(parts: AsyncGenerator[Part]) -> Part:
    async for part in parts:
        return part
    raise InternalError("the answer ended before it began")
