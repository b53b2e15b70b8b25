"""The router's directory: its own, in memory, or its picture of the one in Redis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.directory.memory import MemoryRegistry
from shared.directory.memory_blocks import MemoryBlockDirectory
from shared.directory.redis.directory import RedisDirectory
from shared.directory.redis.followed import FollowedDirectory
from shared.directory.redis.follower import RedisFollower
from shared.directory.redis.store import RedisStore
from shared.directory.redis.url import open_client

if TYPE_CHECKING:
    from pathlib import Path

    from shared.directory.base import BlockDirectory, WorkerRegistry
    from shared.directory.index import BlockIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterDirectory:
    """Who lives and who holds what. With Redis, `follow` must run and `close` come last."""

    registry: WorkerRegistry
    blocks: BlockDirectory
    #: What routing asks. It may name workers that have just gone.
    index: BlockIndex
    follower: RedisFollower | None = None
    store: RedisStore | None = None

    async def follow(self) -> None:
        """Keep the picture of Redis up to date until cancelled; returns at once without Redis."""
        if self.follower is not None:
            await self.follower.run()

    async def close(self) -> None:
        """Close the connections."""
        if self.store is not None:
            await self.store.close()


def make_directory(redis_url: str | None, *, password_file: Path | None = None) -> RouterDirectory:
    """Connects to nothing yet.

    Raises:
        ConfigError: the URL is none.
    """
    if redis_url is None:
        registry = MemoryRegistry()
        blocks = MemoryBlockDirectory(registry)
        return RouterDirectory(registry=registry, blocks=blocks, index=blocks.index)
    store = RedisStore(open_client(redis_url, password_file=password_file))
    follower = RedisFollower(store)
    followed = FollowedDirectory(RedisDirectory(store), follower)
    return RouterDirectory(
        registry=followed, blocks=followed, index=follower.index, follower=follower, store=store
    )
