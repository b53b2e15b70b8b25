"""What the endpoints of the Responses API share where responses are stored."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from services.router.openai.responses_api.stored.late import LateWrites
from services.router.openai.responses_api.stored.lost import end_lost
from services.router.openai.responses_api.stored.runs import BackgroundRuns
from shared.errors import DeadlineError

if TYPE_CHECKING:
    from services.router.openai.responses_api.stored.base import (
        ResponseKey,
        ResponseStore,
        RunBoard,
        StoredResponse,
    )

#: Time between two looks at a response that another router has to end ...
_POLL_S = 0.1
#: ... and the longest wait for its end.
_CANCEL_S = 30.0


class ResponseKeeper:
    """A store, and the responses in the background that are written to it."""

    def __init__(self, store: ResponseStore, board: RunBoard | None = None) -> None:
        """`board`: where routers that share the store see each other's runs."""
        self.store = store
        self.writes = LateWrites(store)
        self.runs = BackgroundRuns(board)
        self._board = board

    async def find(self, tenant: str, response_id: str) -> StoredResponse | None:
        """Return a response as it is now, or None. One whose router has gone has failed.

        Raises:
            UnavailableError: the store cannot be used.
        """
        key = (tenant, response_id)
        entry = self.writes.entry(key) or await self.store.get(*key)
        if entry is None or not entry.is_open or await self._is_made(key):
            return entry
        # It may have ended after the first look.
        entry = await self.store.get(*key)
        if entry is None or not entry.is_open:
            return entry
        await end_lost(self.store, entry)
        return await self.store.get(*key)

    async def cancel(self, tenant: str, response_id: str) -> None:
        """Cancel a response that is being made. When this returns, it has ended and is stored.

        Raises:
            UnavailableError: the store cannot be used.
            DeadlineError: the router that makes it did not end it.
        """
        key = (tenant, response_id)
        if self.runs.has(key) or self._board is None:
            await self.runs.cancel(key)
        elif await self._board.cancel(key):
            try:
                async with asyncio.timeout(_CANCEL_S):
                    await self._until_ended(key)
            except TimeoutError as error:
                message = f"{response_id}: the router that makes it has not ended it"
                raise DeadlineError(message) from error

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Remove a response, and end it if it is being made; return whether there was one.

        Raises:
            UnavailableError: the store cannot be used.
        """
        key = (tenant, response_id)
        await self.runs.cancel(key)
        is_removed = await self.store.delete(*key) or self.writes.entry(key) is not None
        self.writes.drop(key)
        return is_removed

    async def stop(self) -> None:
        """End the responses in the background as failed, and begin no more."""
        await self.runs.stop()
        await self.writes.stop()

    async def _is_made(self, key: ResponseKey) -> bool:
        if self.runs.has(key):
            return True
        return self._board is not None and await self._board.is_alive(key)

    async def _until_ended(self, key: ResponseKey) -> None:
        while (entry := await self.find(*key)) is not None and entry.is_open:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
