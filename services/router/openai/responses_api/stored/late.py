"""Writes to a store of responses that wait while the store cannot be used."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from shared.errors import UnavailableError

if TYPE_CHECKING:
    from services.router.openai.responses_api.stored.base import (
        ResponseKey,
        ResponseStore,
        StoredEvent,
        StoredResponse,
    )

log = structlog.get_logger(__name__)

#: Time between two attempts.
RETRY_S = 0.5
#: Time that the end of the process waits for the store.
STOP_S = 5.0
#: Content that may wait, of all responses together.
MAX_BYTES = 64 << 20


class _Waiting:
    """What is to be written of one response: its newest form, then its events."""

    def __init__(self) -> None:
        self.entry: StoredResponse | None = None
        self.events: deque[StoredEvent] = deque()
        self._num_event_bytes = 0
        self.task: asyncio.Task[None] | None = None

    @property
    def num_bytes(self) -> int:
        return (self.entry.num_bytes if self.entry else 0) + self._num_event_bytes

    def add(self, event: StoredEvent) -> None:
        self.events.append(event)
        self._num_event_bytes += len(event.data)

    def remove_first(self) -> None:
        self._num_event_bytes -= len(self.events.popleft().data)


class LateWrites:
    """Writes to a store at once, or as soon as it can be used again.

    Events are always written in the background; those that come meanwhile go with the next write.
    An event that says that a response has ended is written after the response.
    """

    def __init__(self, store: ResponseStore, *, max_bytes: int = MAX_BYTES) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._waiting: dict[ResponseKey, _Waiting] = {}

    async def put(self, entry: StoredResponse) -> bool:
        """Keep `entry`; return whether it is kept, or will be."""
        with suppress(UnavailableError):
            return await self._store.put(entry)
        if not self._has_room(entry.num_bytes):
            log.error("response_lost", response_id=entry.response_id, reason="too many wait")
            return False
        self._open(entry.key).entry = entry
        return True

    def add_event(self, key: ResponseKey, event: StoredEvent) -> None:
        """Add an event to a response; it is left out if too much waits."""
        if self._has_room(len(event.data)):
            self._open(key).add(event)

    def entry(self, key: ResponseKey) -> StoredResponse | None:
        """Return the response if it waits."""
        waiting = self._waiting.get(key)
        return None if waiting is None else waiting.entry

    def drop(self, key: ResponseKey) -> None:
        """Write no more of a response."""
        waiting = self._waiting.pop(key, None)
        if waiting is not None and waiting.task is not None:
            waiting.task.cancel()

    async def stop(self) -> None:
        """Wait some seconds for what is to be written; give up the rest."""
        tasks = [each.task for each in self._waiting.values() if each.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_S)
        for key in list(self._waiting):
            log.error("response_lost", response_id=key[1], reason="the router ended")
            self.drop(key)

    def _has_room(self, num_bytes: int) -> bool:
        waiting = sum(each.num_bytes for each in self._waiting.values())
        return waiting + num_bytes <= self._max_bytes

    def _open(self, key: ResponseKey) -> _Waiting:
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = _Waiting()
            waiting.task = asyncio.create_task(self._write(key, waiting))
        return waiting

    async def _write(self, key: ResponseKey, waiting: _Waiting) -> None:
        while waiting.entry is not None or waiting.events:
            try:
                await self._write_once(key, waiting)
            except UnavailableError:
                await asyncio.sleep(RETRY_S)
        del self._waiting[key]

    async def _write_once(self, key: ResponseKey, waiting: _Waiting) -> None:
        entry, events = waiting.entry, tuple(waiting.events)
        if entry is not None:
            await self._store.put(entry)
            if waiting.entry is entry:
                waiting.entry = None
        if events:
            await self._store.add_events(*key, events)
            for _ in events:
                waiting.remove_first()
