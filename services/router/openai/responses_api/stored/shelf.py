"""The entries of one tenant in memory, with their events."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.openai.responses_api.stored.base import StoredEvent, StoredResponse


class Slot:
    """An entry and its events."""

    def __init__(self, entry: StoredResponse) -> None:
        self.entry = entry
        self.events: deque[StoredEvent] = deque()
        self._num_event_bytes = 0
        #: Set at the next event, and at the removal of the entry.
        self.news = asyncio.Event()

    @property
    def num_bytes(self) -> int:
        """Size of the entry and its events."""
        return self.entry.num_bytes + self._num_event_bytes

    def add(self, events: Sequence[StoredEvent], *, max_bytes: int) -> None:
        """Add events after the present ones; remove the earliest while they are over the bound."""
        last = self.events[-1].number if self.events else -1
        new = [event for event in events if event.number > last]
        self.events += new
        self._num_event_bytes += sum(len(event.data) for event in new)
        while self._num_event_bytes > max_bytes and len(self.events) > 1:
            self._num_event_bytes -= len(self.events.popleft().data)
        self.wake()

    def after(self, number: int) -> Sequence[StoredEvent]:
        """Return the events with greater numbers."""
        if not self.events:
            return ()
        num_passed = max(number + 1 - self.events[0].number, 0)
        return tuple(self.events)[num_passed:]

    def wake(self) -> None:
        """Wake up what waits for events."""
        news, self.news = self.news, asyncio.Event()
        news.set()


class Shelf:
    """The entries of one tenant, the least recently used first."""

    def __init__(self) -> None:
        self.slots: OrderedDict[str, Slot] = OrderedDict()
        self.num_bytes = 0

    @property
    def num_entries(self) -> int:
        """Number of entries."""
        return len(self.slots)

    def put(self, entry: StoredResponse) -> None:
        """Put an entry in the place of an earlier one, whose events it keeps."""
        slot = self.slots.get(entry.response_id)
        if slot is None:
            slot = self.slots[entry.response_id] = Slot(entry)
        else:
            self.num_bytes -= slot.num_bytes
            slot.entry = entry
        self.num_bytes += slot.num_bytes
        self.slots.move_to_end(entry.response_id)

    def add_events(
        self, response_id: str, events: Sequence[StoredEvent], *, max_bytes: int
    ) -> None:
        """Add events to an entry."""
        slot = self.slots[response_id]
        self.num_bytes -= slot.num_bytes
        slot.add(events, max_bytes=max_bytes)
        self.num_bytes += slot.num_bytes

    def remove(self, response_id: str) -> None:
        """Remove an entry."""
        slot = self.slots.pop(response_id)
        self.num_bytes -= slot.num_bytes
        slot.wake()
