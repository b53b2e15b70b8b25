"""Changes of membership by polling, and their distribution to watchers."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from shared.directory.base import RegistryChange, RegistryEvent

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from shared.identity import WorkerId


class Watcher:
    """Unread events of one watcher. Loads of one worker are merged into one event."""

    def __init__(self) -> None:
        self._order: deque[list[RegistryEvent]] = deque()
        #: The unread event of a live worker, in a list of one so that it can be replaced.
        self._unread: dict[WorkerId, list[RegistryEvent]] = {}
        self._wake = asyncio.Event()

    def put(self, event: RegistryEvent) -> None:
        """Add an event."""
        worker = event.record.worker
        slot = self._unread.get(worker)
        if event.change is RegistryChange.UPDATED and slot is not None:
            slot[0] = replace(slot[0], load=event.load)
            return
        slot = [event]
        self._order.append(slot)
        if event.change is RegistryChange.LEFT:
            self._unread.pop(worker, None)
        else:
            self._unread[worker] = slot
        self._wake.set()

    def pop(self) -> RegistryEvent | None:
        """Return the oldest event; None if there is none."""
        if not self._order:
            return None
        slot = self._order.popleft()
        worker = slot[0].record.worker
        if self._unread.get(worker) is slot:
            del self._unread[worker]
        return slot[0]

    async def wait(self, timeout_s: float = math.inf) -> None:
        """Wait until there is an event, or the time is over."""
        self._wake.clear()
        if self._order:
            return
        try:
            async with asyncio.timeout(None if timeout_s == math.inf else timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return


async def poll_changes(
    ask: Callable[[], Awaitable[list[RegistryEvent]]], poll_s: float
) -> AsyncGenerator[RegistryEvent]:
    """Yield the changes between answers of `ask`, forever.

    A worker that joins and leaves in between is missed. An incarnation leaves before the next one
    of its name joins.
    """
    known: dict[WorkerId, RegistryEvent] = {}
    while True:
        now = {event.record.worker: event for event in await ask()}
        for worker in known.keys() - now.keys():
            yield replace(known[worker], change=RegistryChange.LEFT)
        for worker, event in now.items():
            if worker not in known:
                yield event
            elif event.load != known[worker].load:
                yield replace(event, change=RegistryChange.UPDATED)
        known = now
        await asyncio.sleep(poll_s)
