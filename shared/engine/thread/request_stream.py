"""The events of one request, on the asyncio side of the engine."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from shared.engine.sequence.events import Failed, NewTokens, PromptStates

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.engine.sequence.events import EngineEvent


def is_last(event: EngineEvent) -> bool:
    """Return whether this is the last event of its request."""
    match event:
        case NewTokens():
            return event.finish_reason is not None
        case Failed() | PromptStates():
            return True
        case _:
            return False


class RequestStream:
    """Async iterator, for one reader, that ends after the request's last event.

    Closing it earlier, or cancelling a wait for the next event, aborts the request.
    """

    def __init__(self, request_id: str, abort: Callable[[RequestStream], None]) -> None:
        self.request_id = request_id
        self._abort = abort
        self._events: deque[EngineEvent] = deque()
        #: Future of the reader's wait, if it waits.
        self._wakeup: asyncio.Future[None] | None = None
        self._over = False

    def push(self, event: EngineEvent) -> None:
        """Add an event. Called on the event loop."""
        self._events.append(event)
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> EngineEvent:
        if self._over:
            raise StopAsyncIteration
        if not self._events:
            await self._wait()
        event = self._events.popleft()
        self._over = is_last(event)
        return event

    async def _wait(self) -> None:
        self._wakeup = asyncio.get_running_loop().create_future()
        try:
            await self._wakeup
        except asyncio.CancelledError:
            await self.aclose()
            raise
        finally:
            self._wakeup = None

    async def aclose(self) -> None:
        """End the request if it has not ended. Does not wait; safe to repeat."""
        if not self._over:
            self._over = True
            self._abort(self)
