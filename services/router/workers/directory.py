"""The router's directory: its own in memory, or a copy of the one in Redis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.directory.memory import MemoryRegistry
from shared.directory.memory_blocks import MemoryBlockDirectory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shared.directory.base import BlockDirectory, RefusedWorker, WorkerRegistry
    from shared.directory.index import BlockIndex
    from shared.directory.redis.follower import RedisFollower
    from shared.directory.redis.store import RedisStore
    from shared.rpc.auth import ClusterToken


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterDirectory:
    """Live workers and the blocks that they hold.

    With Redis, `follow` must run, and `close` must be called last.
    """

    registry: WorkerRegistry
    blocks: BlockDirectory
    #: The index that routing uses. It may contain workers that have just left.
    index: BlockIndex
    follower: RedisFollower | None = None
    store: RedisStore | None = None

    async def follow(self) -> None:
        """Keep the copy of Redis up to date until cancelled; return at once without Redis."""
        if self.follower is not None:
            await self.follower.run()

    def refused(self) -> Sequence[RefusedWorker]:
        """Return workers whose records in Redis are refused."""
        return () if self.follower is None else self.follower.refused

    async def close(self) -> None:
        """Close the connections."""
        if self.store is not None:
            await self.store.close()


def make_directory(
    redis_url: str | None, *, password_file: Path | None = None, token: ClusterToken | None = None
) -> RouterDirectory:
    """Return the directory, without a connection yet.

    With a `token`, records in Redis must be sealed with it.

    Raises:
        ConfigError: `redis_url` is not a valid URL.
    """
    if redis_url is None:
        registry = MemoryRegistry()
        blocks = MemoryBlockDirectory(registry)
        return RouterDirectory(registry=registry, blocks=blocks, index=blocks.index)
    # Redis's client takes a quarter of a second to load, and most clusters have none.
    from shared.directory.redis.directory import RedisDirectory  # noqa: PLC0415
    from shared.directory.redis.followed import FollowedDirectory  # noqa: PLC0415
    from shared.directory.redis.follower import RedisFollower  # noqa: PLC0415
    from shared.directory.redis.seal import RecordSeals  # noqa: PLC0415
    from shared.directory.redis.store import RedisStore  # noqa: PLC0415
    from shared.directory.redis.url import open_client  # noqa: PLC0415

    store = RedisStore(open_client(redis_url, password_file=password_file))
    seals = None if token is None else RecordSeals(token)
    follower = RedisFollower(store, seals=seals)
    followed = FollowedDirectory(RedisDirectory(store, seals=seals), follower)
    return RouterDirectory(
        registry=followed, blocks=followed, index=follower.index, follower=follower, store=store
    )
