"""The events of a streamed response in the background: those that are stored, then new ones."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec
import structlog
from starlette.responses import StreamingResponse

from services.router.openai.errors import FieldError, error_detail, error_status
from services.router.openai.replies.responses import named_event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.responses import Response

    from services.router.openai.responses_api.stored.base import ResponseKey, StoredEvent
    from services.router.openai.responses_api.stored.keeper import ResponseKeeper

log = structlog.get_logger(__name__)

#: Longest wait for an event before a look at the response. Redis's client waits for twice as long.
_WAIT_S = 1.0
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class StreamError(msgspec.Struct, tag_field="type", tag="error"):
    """The event that ends a stream of which the rest is not known."""

    sequence_number: int
    code: str
    message: str
    param: str | None = None


async def followed(
    request: Request, keeper: ResponseKeeper, key: ResponseKey, *, after: int
) -> Response:
    """Return a stream of the events with numbers over `after`, until the response has ended.

    A client that leaves ends the stream and not the response.

    Raises:
        FieldError: the response has no events, or no longer those after `after`.
        UnavailableError: the store cannot be used.
    """
    found = await keeper.store.events(*key, after=after)
    if not found and not await keeper.store.events(*key, after=-1):
        message = "stream: the response was not made with background and stream: it has no events"
        raise FieldError(message, param="stream")
    if found and found[0].number != after + 1:
        raise _removed(found[0].number)
    return StreamingResponse(
        _frames(keeper, key, after, request.state.request_id),
        status_code=HTTPStatus.OK,
        media_type="text/event-stream",
        headers=_HEADERS,
    )


async def _frames(
    keeper: ResponseKeeper, key: ResponseKey, after: int, request_id: str
) -> AsyncIterator[bytes]:
    try:
        async for event in _events(keeper, key, after):
            yield event.data
            after = event.number
    except Exception as error:  # noqa: BLE001 the process edge: becomes an event
        log.warning("stream_failed", status=error_status(error), error=repr(error))
        message = error_detail(error, request_id=request_id).message
        yield named_event(StreamError(after + 1, "server_error", message))


async def _events(
    keeper: ResponseKeeper, key: ResponseKey, after: int
) -> AsyncIterator[StoredEvent]:
    has_ended, wait_s = False, 0.0
    while True:
        found = await keeper.store.events(*key, after=after, wait_s=wait_s)
        for event in found:
            if event.number != after + 1:
                raise _removed(event.number)
            yield event
            after = event.number
            if event.is_last:
                return
        if found:
            continue
        # The last event is stored after the response, so it gets one more wait.
        if has_ended:
            return
        entry = await keeper.find(*key)
        if entry is None:
            raise FieldError(f"response {key[1]} was removed", param="response_id")
        has_ended, wait_s = not entry.is_open, _WAIT_S


def _removed(first: int) -> FieldError:
    """Return the error for a client that is behind the oldest event that is left."""
    message = (
        f"starting_after: events before {first} are no longer stored: fetch the response without "
        "stream, or see --responses-store-event-bytes"
    )
    return FieldError(message, param="starting_after")
