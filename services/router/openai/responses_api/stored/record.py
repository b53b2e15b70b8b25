"""The stored form of one response, written as the response changes."""

from __future__ import annotations

import secrets
from contextlib import aclosing
from typing import TYPE_CHECKING

from services.router.openai.replies.responses import JSON
from services.router.openai.responses_api.stored.base import StoredResponse

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from services.router.openai.replies.answers import Part
    from services.router.openai.responses_api.output import Response
    from services.router.openai.responses_api.reply import ResponseReply
    from services.router.openai.responses_api.stored.base import ResponseStore

#: Random bytes of an id: where no keys are configured, the id alone protects a response.
_ID_BYTES = 24


def new_id() -> str:
    """Return an id that cannot be guessed, unlike one that is made of a request's id."""
    return f"resp_{secrets.token_hex(_ID_BYTES)}"


class Record:
    """Writes one response to a store. Nothing is stored before the first `write`."""

    def __init__(
        self, store: ResponseStore, *, tenant: str, items: bytes, background: bool
    ) -> None:
        self._store = store
        self.tenant = tenant
        self._items = items
        self._background = background

    async def write(self, response: Response) -> bool:
        """Store `response` as it is; return whether it fits. Sets its `store`."""
        response.store = True
        response.store = await self._store.put(
            StoredResponse(
                response_id=response.id,
                tenant=self.tenant,
                status=response.status,
                background=self._background,
                items=self._items,
                response=JSON.encode(response),
            )
        )
        return response.store


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
