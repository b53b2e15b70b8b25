"""Finds changes of membership by polling, and hands them to the watchers."""

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
    """Events one watcher has not read yet. Loads of one worker are folded into one event."""

    def __init__(self) -> None:
        self._order: deque[list[RegistryEvent]] = deque()
        #: The unread event of a live worker, in a list of one so that it can be replaced.
        self._unread: dict[WorkerId, list[RegistryEvent]] = {}
        self._wake = asyncio.Event()

    def put(self, event: RegistryEvent) -> None:
        """Keep an event until it is read."""
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
        """The oldest event, if there is one."""
        if not self._order:
            return None
        slot = self._order.popleft()
        worker = slot[0].record.worker
        if self._unread.get(worker) is slot:
            del self._unread[worker]
        return slot[0]

    async def wait(self, timeout_s: float = math.inf) -> None:
        """Until there is something to read, or the time is up."""
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
    """What changed between two answers of `ask`, for ever; a worker that came and went is not seen.

    An incarnation leaves before the next one of its name joins.
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
