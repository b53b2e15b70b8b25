"""A store of responses in the memory of this process."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING

from services.router.openai.responses_api.stored.base import GONE_S
from services.router.openai.responses_api.stored.shelf import Shelf

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from services.router.openai.responses_api.stored.base import (
        ResponseKey,
        StoredEvent,
        StoredResponse,
        StoreLimits,
    )
    from services.router.openai.responses_api.stored.shelf import Slot


class MemoryStore:
    """See ResponseStore. A full store removes an entry of the tenant that has most of it.

    So a tenant that stores much displaces its own responses before those of others. Entries that
    are too old are removed at the next call, of any tenant.
    """

    def __init__(
        self, limits: StoreLimits, *, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._clock_s = clock_s
        self._shelves: dict[str, Shelf] = {}
        #: Time of the end of each entry, the earliest first.
        self._ends: OrderedDict[ResponseKey, float] = OrderedDict()
        #: By entry that was deleted before it had ended: the time until which it is not kept again.
        self._gone: OrderedDict[ResponseKey, float] = OrderedDict()

    async def check(self) -> None:
        """See ResponseStore."""

    async def put(self, entry: StoredResponse) -> bool:
        """See ResponseStore."""
        self._remove_old()
        if entry.key in self._gone:
            return False
        slot = self._find(*entry.key)
        if slot is not None and not slot.entry.is_open:
            return True
        self._shelves.setdefault(entry.tenant, Shelf()).put(entry)
        self._ends[entry.key] = self._clock_s() + self._limits.max_age_s
        self._ends.move_to_end(entry.key)
        self._make_room()
        return entry.key in self._ends

    async def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        """See ResponseStore."""
        self._remove_old()
        slot = self._find(tenant, response_id)
        if slot is None:
            return None
        self._shelves[tenant].slots.move_to_end(response_id)
        return slot.entry

    async def delete(self, tenant: str, response_id: str) -> bool:
        """See ResponseStore."""
        self._remove_old()
        slot = self._find(tenant, response_id)
        if slot is not None and slot.entry.is_open:
            self._gone[slot.entry.key] = self._clock_s() + GONE_S
        return self._remove(tenant, response_id)

    async def add_events(
        self, tenant: str, response_id: str, events: Sequence[StoredEvent]
    ) -> None:
        """See ResponseStore."""
        if self._find(tenant, response_id) is not None:
            max_bytes = self._limits.max_event_bytes
            self._shelves[tenant].add_events(response_id, events, max_bytes=max_bytes)
            self._make_room()

    async def events(
        self, tenant: str, response_id: str, *, after: int, wait_s: float = 0.0
    ) -> Sequence[StoredEvent]:
        """See ResponseStore."""
        slot = self._find(tenant, response_id)
        if slot is None:
            return ()
        found = slot.after(after)
        if not found and wait_s:
            with suppress(TimeoutError):
                await asyncio.wait_for(slot.news.wait(), wait_s)
            found = slot.after(after)
        return found

    def _find(self, tenant: str, response_id: str) -> Slot | None:
        shelf = self._shelves.get(tenant)
        return None if shelf is None else shelf.slots.get(response_id)

    def _make_room(self) -> None:
        shelves = self._shelves
        while sum(shelf.num_entries for shelf in shelves.values()) > self._limits.max_entries:
            self._remove_first(max(shelves, key=lambda tenant: shelves[tenant].num_entries))
        while sum(shelf.num_bytes for shelf in shelves.values()) > self._limits.max_bytes:
            self._remove_first(max(shelves, key=lambda tenant: shelves[tenant].num_bytes))

    def _remove_first(self, tenant: str) -> None:
        self._remove(tenant, next(iter(self._shelves[tenant].slots)))

    def _remove_old(self) -> None:
        now_s = self._clock_s()
        while self._ends and next(iter(self._ends.values())) <= now_s:
            self._remove(*next(iter(self._ends)))
        while self._gone and next(iter(self._gone.values())) <= now_s:
            self._gone.popitem(last=False)

    def _remove(self, tenant: str, response_id: str) -> bool:
        if self._ends.pop((tenant, response_id), None) is None:
            return False
        shelf = self._shelves[tenant]
        shelf.remove(response_id)
        if not shelf.slots:
            del self._shelves[tenant]
        return True
