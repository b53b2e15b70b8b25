"""A store of responses in the memory of this process."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.router.openai.responses_api.stored.base import StoredResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """Bounds of a store, for all tenants together."""

    max_entries: int
    max_bytes: int
    max_age_s: float


class _Shelf:
    """The entries of one tenant, the least recently used first."""

    def __init__(self) -> None:
        self.entries: OrderedDict[str, StoredResponse] = OrderedDict()
        self.num_bytes = 0

    @property
    def num_entries(self) -> int:
        return len(self.entries)

    def add(self, entry: StoredResponse) -> None:
        self.entries[entry.response_id] = entry
        self.num_bytes += entry.num_bytes

    def remove(self, response_id: str) -> None:
        self.num_bytes -= self.entries.pop(response_id).num_bytes


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
        self._shelves: dict[str, _Shelf] = {}
        #: Time of the end of each entry, by tenant and id, the earliest first.
        self._ends: OrderedDict[tuple[str, str], float] = OrderedDict()

    async def put(self, entry: StoredResponse) -> bool:
        """See ResponseStore."""
        self._remove_old()
        self._remove(entry.tenant, entry.response_id)
        self._shelves.setdefault(entry.tenant, _Shelf()).add(entry)
        key = (entry.tenant, entry.response_id)
        self._ends[key] = self._clock_s() + self._limits.max_age_s
        self._make_room()
        return key in self._ends

    async def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        """See ResponseStore."""
        self._remove_old()
        if (tenant, response_id) not in self._ends:
            return None
        entries = self._shelves[tenant].entries
        entries.move_to_end(response_id)
        return entries[response_id]

    async def delete(self, tenant: str, response_id: str) -> bool:
        """See ResponseStore."""
        self._remove_old()
        return self._remove(tenant, response_id)

    def _make_room(self) -> None:
        shelves = self._shelves
        while sum(shelf.num_entries for shelf in shelves.values()) > self._limits.max_entries:
            self._remove_first(max(shelves, key=lambda tenant: shelves[tenant].num_entries))
        while sum(shelf.num_bytes for shelf in shelves.values()) > self._limits.max_bytes:
            self._remove_first(max(shelves, key=lambda tenant: shelves[tenant].num_bytes))

    def _remove_first(self, tenant: str) -> None:
        self._remove(tenant, next(iter(self._shelves[tenant].entries)))

    def _remove_old(self) -> None:
        now_s = self._clock_s()
        while self._ends and next(iter(self._ends.values())) <= now_s:
            self._remove(*next(iter(self._ends)))

    def _remove(self, tenant: str, response_id: str) -> bool:
        if self._ends.pop((tenant, response_id), None) is None:
            return False
        shelf = self._shelves[tenant]
        shelf.remove(response_id)
        if not shelf.entries:
            del self._shelves[tenant]
        return True
