"""The stored form of one response, written as the response changes."""

from __future__ import annotations

import secrets
from contextlib import aclosing
from typing import TYPE_CHECKING

from services.router.openai.replies.responses import JSON, named_event
from services.router.openai.responses_api.stored.base import StoredEvent, StoredResponse

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from services.router.openai.replies.answers import Part
    from services.router.openai.responses_api.output import Event, Response
    from services.router.openai.responses_api.reply import ResponseReply
    from services.router.openai.responses_api.stored.base import ResponseStore
    from services.router.openai.responses_api.stored.late import LateWrites

#: Random bytes of an id: where no keys are configured, the id alone protects a response.
_ID_BYTES = 24


def new_id() -> str:
    """Return an id that cannot be guessed, unlike one that is made of a request's id."""
    return f"resp_{secrets.token_hex(_ID_BYTES)}"


class Record:
    """Writes one response to a store. Nothing is stored before the first write."""

    def __init__(
        self,
        store: ResponseStore,
        writes: LateWrites,
        *,
        tenant: str,
        items: bytes,
        background: bool,
    ) -> None:
        self._store = store
        self._writes = writes
        self.tenant = tenant
        self._items = items
        self._background = background

    async def begin(self, response: Response, events: Sequence[Event]) -> bool:
        """Store `response` and its first events before anything is generated.

        Return whether it fits.

        Raises:
            UnavailableError: the store cannot be used.
        """
        is_kept = await self._store.put(self._entry(response))
        if events:
            await self._store.add_events(self.tenant, response.id, [_stored(e) for e in events])
        return is_kept

    async def write(self, response: Response) -> bool:
        """Store `response` as it is, or later; return whether it fits. Sets its `store`."""
        response.store = True
        response.store = await self._writes.put(self._entry(response))
        return response.store

    def add_events(self, response_id: str, events: Sequence[Event], *, last: bool = False) -> None:
        """Store events in the background. `last`: they are the last ones."""
        for event in events:
            self._writes.add_event((self.tenant, response_id), _stored(event, last=last))

    def _entry(self, response: Response) -> StoredResponse:
        return StoredResponse(
            response_id=response.id,
            tenant=self.tenant,
            status=response.status,
            background=self._background,
            items=self._items,
            response=JSON.encode(response),
        )


def _stored(event: Event, *, last: bool = False) -> StoredEvent:
    return StoredEvent(event.sequence_number, named_event(event), last)


async def recorded(
    parts: AsyncGenerator[Part], reply: ResponseReply, record: Record
) -> AsyncGenerator[Part]:
    """Yield `parts`; store the whole response after the last one, before the client has its end.

    A client may go on from a response as soon as it has read it.
    """
    async with aclosing(parts):
        async for part in parts:
            yield part
    await record.write(reply.ended())
