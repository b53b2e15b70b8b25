"""Server-sent events: how a stream of answers goes over the wire."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol

import structlog
from starlette.responses import Response

from services.router.openai.disconnect import unless_disconnected
from services.router.openai.errors import error_json, error_status
from services.router.openai.responses import JSON
from shared.errors import RequestCancelledError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from services.router.generation import AnswerPiece

logger = structlog.get_logger(__name__)

_DONE = b"data: [DONE]\n\n"
_HEADERS = {
    "cache-control": "no-cache",
    # Tells reverse proxies not to collect the stream before passing it on.
    "x-accel-buffering": "no",
}


class ChunkWriter(Protocol):
    """Turns pieces into the chunks of one endpoint."""

    def chunk(self, place: int, piece: AnswerPiece) -> Any:
        """The chunk for one piece of an answer to the prompt at `place`."""

    def last_chunk(self) -> Any | None:
        """What follows after all answers, if anything."""


class EventStream(Response):
    """Sends events until they end or the client is gone, and then closes their source."""

    media_type = "text/event-stream"

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes]) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._first = first
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything."""
        try:
            await unless_disconnected(receive, self._send(send))
        except RequestCancelledError:
            logger.debug("client_gone_while_streaming")
        finally:
            await self._rest.aclose()

    async def _send(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        async for event in self._rest:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def stream_events(
    request: Request, parts: AsyncGenerator[tuple[int, AnswerPiece]], writer: ChunkWriter
) -> Response:
    """Answer with a stream. What goes wrong before the first token still has its own status."""
    events = _events(parts, writer, request.state.request_id)
    first = await unless_disconnected(request.receive, anext(events))
    return EventStream(first, events)


async def _events(
    parts: AsyncGenerator[tuple[int, AnswerPiece]], writer: ChunkWriter, request_id: str
) -> AsyncGenerator[bytes]:
    started = False
    try:
        async with aclosing(parts):
            async for place, piece in parts:
                yield b"data: %b\n\n" % JSON.encode(writer.chunk(place, piece))
                started = True
        if (last := writer.last_chunk()) is not None:
            yield b"data: %b\n\n" % JSON.encode(last)
    except Exception as error:
        if not started:
            raise
        # The status has been sent, so the error has to travel as an event.
        logger.warning("stream_failed", status=error_status(error), error=repr(error))
        yield b"data: %b\n\n" % error_json(error, request_id=request_id)
    yield _DONE
