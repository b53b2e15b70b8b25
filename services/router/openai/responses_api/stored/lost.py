"""The end of a response in the background whose router has gone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from services.router.openai.replies.responses import JSON, named_event
from services.router.openai.responses_api.stored.base import StoredEvent

if TYPE_CHECKING:
    from services.router.openai.responses_api.stored.base import ResponseStore, StoredResponse

_MESSAGE = "the router that made the response is gone"


class _Failed(msgspec.Struct, tag_field="type", tag="response.failed"):
    sequence_number: int
    response: dict[str, Any]


async def end_lost(store: ResponseStore, entry: StoredResponse) -> None:
    """Store the response as failed, and the event that says so if it has events."""
    response = msgspec.json.decode(entry.response, type=dict[str, Any])
    response |= {"status": "failed", "error": {"code": "server_error", "message": _MESSAGE}}
    await store.put(replace(entry, status="failed", response=JSON.encode(response)))
    number = await _last_number(store, entry)
    if number is not None:
        event = _Failed(number + 1, response)
        last = StoredEvent(event.sequence_number, named_event(event), is_last=True)
        await store.add_events(*entry.key, [last])


async def _last_number(store: ResponseStore, entry: StoredResponse) -> int | None:
    """Return the number of the newest event; None if there is none."""
    number: int | None = None
    while found := await store.events(*entry.key, after=-1 if number is None else number):
        number = found[-1].number
    return number
