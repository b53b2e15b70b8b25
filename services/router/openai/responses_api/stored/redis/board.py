"""The list of responses that are being made, in Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.openai.responses_api.stored.redis.scripts import PREFIX, answered, member_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from services.router.openai.responses_api.stored.base import ResponseKey
    from services.router.openai.responses_api.stored.redis.scripts import ResponseScripts

#: A run without a beat for this time is missed ...
LEASE_S = 10.0
#: ... and lost if no beat comes within this time after it was missed first.
GRACE_S = 5.0


class RedisBoard:
    """See RunBoard."""

    def __init__(self, scripts: ResponseScripts) -> None:
        self._scripts = scripts

    async def renew(self, runs: Collection[ResponseKey]) -> Collection[ResponseKey]:
        """See RunBoard."""
        members = {member_of(run).encode(): run for run in runs}
        return [members[each] for each in await self._scripts.run("renew", *members)]

    async def remove(self, run: ResponseKey) -> None:
        """See RunBoard."""
        await answered(self._scripts.client.unlink(f"{PREFIX}run:{member_of(run)}"))

    async def cancel(self, run: ResponseKey) -> bool:
        """See RunBoard."""
        lease_ms = round(LEASE_S * 1000)
        return bool(await self._scripts.run("cancel", member_of(run), lease_ms))

    async def is_alive(self, run: ResponseKey) -> bool:
        """See RunBoard."""
        times = (round(LEASE_S * 1000), round(GRACE_S * 1000))
        return bool(await self._scripts.run("is_alive", member_of(run), *times))
