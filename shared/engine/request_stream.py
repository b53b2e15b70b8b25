"""The events of one request, on the asyncio side of the engine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from shared.engine.events import Failed, NewTokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.engine.events import EngineEvent


def is_last(event: EngineEvent) -> bool:
    """Whether no event of its request follows."""
    match event:
        case NewTokens():
            return event.finish_reason is not None
        case Failed():
            return True
        case _:
            return False


class RequestStream:
    """Async iterator that ends after the request's last event.

    Closing it earlier, or cancelling whoever waits for the next event, aborts the request.
    """

    def __init__(self, request_id: str, abort: Callable[[str], None]) -> None:
        self.request_id = request_id
        self._abort = abort
        self._events: asyncio.Queue[EngineEvent] = asyncio.Queue()
        self._over = False

    def push(self, event: EngineEvent) -> None:
        """Add an event. Called on the event loop."""
        self._events.put_nowait(event)

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> EngineEvent:
        if self._over:
            raise StopAsyncIteration
        try:
            event = await self._events.get()
        except asyncio.CancelledError:
            await self.aclose()
            raise
        self._over = is_last(event)
        return event

    async def aclose(self) -> None:
        """End the request if it has not ended. Does not wait; safe to repeat."""
        if not self._over:
            self._over = True
            self._abort(self.request_id)
