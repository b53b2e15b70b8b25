"""A store of responses in Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.openai.responses_api.stored.base import GONE_S, StoredEvent, StoredResponse
from services.router.openai.responses_api.stored.redis.scripts import (
    PREFIX,
    answered,
    member_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.openai.responses_api.stored.base import StoreLimits
    from services.router.openai.responses_api.stored.redis.scripts import ResponseScripts

#: Events per read.
_PAGE = 256


class RedisStore:
    """See ResponseStore. A full store removes an entry of the tenant that has most of it."""

    def __init__(self, scripts: ResponseScripts, limits: StoreLimits) -> None:
        self._scripts = scripts
        self._limits = limits

    async def check(self) -> None:
        """See ResponseStore."""
        await answered(self._scripts.client.ping())

    async def put(self, entry: StoredResponse) -> bool:
        """See ResponseStore."""
        found = await self._scripts.run(
            "put",
            member_of(entry.key),
            *self._bounds,
            int(entry.is_open),
            int(entry.background),
            entry.status,
            entry.items,
            entry.response,
        )
        return bool(found)

    async def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        """See ResponseStore."""
        found = await self._scripts.run("get", member_of((tenant, response_id)))
        if not found:
            return None
        background, status, items, response = found
        return StoredResponse(
            response_id=response_id,
            tenant=tenant,
            status=status.decode(),
            background=background == b"1",
            items=items,
            response=response,
        )

    async def delete(self, tenant: str, response_id: str) -> bool:
        """See ResponseStore."""
        gone_ms = round(GONE_S * 1000)
        return bool(await self._scripts.run("delete", member_of((tenant, response_id)), gone_ms))

    async def add_events(
        self, tenant: str, response_id: str, events: Sequence[StoredEvent]
    ) -> None:
        """See ResponseStore."""
        for at in range(0, len(events), _PAGE):
            told = [
                part
                for event in events[at : at + _PAGE]
                for part in (event.number, int(event.is_last), event.data)
            ]
            member = member_of((tenant, response_id))
            max_bytes = self._limits.max_event_bytes
            await self._scripts.run("add_events", member, *self._bounds, max_bytes, *told)

    async def events(
        self, tenant: str, response_id: str, *, after: int, wait_s: float = 0.0
    ) -> Sequence[StoredEvent]:
        """See ResponseStore. A call that waits has a connection of its own meanwhile."""
        key = f"{PREFIX}events:{member_of((tenant, response_id))}"
        block_ms = max(round(wait_s * 1000), 1) if wait_s else None
        found = await answered(
            self._scripts.client.xread({key: f"{after + 1}-0"}, count=_PAGE, block=block_ms)
        )
        if not found:
            return ()
        [(_, entries)] = found.items() if isinstance(found, dict) else found
        return tuple(
            StoredEvent(int(entry_id.partition(b"-")[0]) - 1, fields[b"d"], fields[b"l"] == b"1")
            for entry_id, fields in entries
        )

    @property
    def _bounds(self) -> tuple[int, int]:
        return self._limits.max_entries, self._limits.max_bytes
