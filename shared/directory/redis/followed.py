"""A router's directory with Redis: reads from its local copy, writes to Redis."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

    from shared.directory.base import BlockUpdate, RegistryEvent, WorkerLoad, WorkerRecord
    from shared.directory.redis.directory import RedisDirectory
    from shared.directory.redis.follower import RedisFollower
    from shared.identity import WorkerId
    from shared.kv.tier import BlockTier


class FollowedDirectory:
    """WorkerRegistry and BlockDirectory. A write is visible to reads a moment later."""

    def __init__(self, directory: RedisDirectory, follower: RedisFollower) -> None:
        self._directory = directory
        self._follower = follower

    async def register(self, record: WorkerRecord, lease_s: float) -> None:
        """See WorkerRegistry."""
        await self._directory.register(record, lease_s)

    async def heartbeat(self, worker: WorkerId, load: WorkerLoad) -> None:
        """See WorkerRegistry."""
        await self._directory.heartbeat(worker, load)

    async def deregister(self, worker: WorkerId) -> None:
        """See WorkerRegistry."""
        await self._directory.deregister(worker)

    async def publish(self, update: BlockUpdate) -> None:
        """See BlockDirectory."""
        await self._directory.publish(update)

    async def replace(
        self, worker: WorkerId, sequence: int, hashes: Mapping[BlockTier, Sequence[bytes]]
    ) -> None:
        """See BlockDirectory."""
        await self._directory.replace(worker, sequence, hashes)

    async def workers(self) -> list[RegistryEvent]:
        """See WorkerRegistry. Never waits for Redis."""
        return self._follower.members.workers()

    async def watch(self) -> AsyncIterator[RegistryEvent]:
        """See WorkerRegistry. Never ends because of Redis."""
        events = cast("AsyncGenerator[RegistryEvent]", self._follower.members.watch())
        async with aclosing(events):
            async for event in events:
                yield event

    async def lookup(self, hashes: Sequence[bytes]) -> dict[WorkerId, int]:
        """See BlockDirectory. Never waits for Redis."""
        return self._follower.index.lookup(hashes)
