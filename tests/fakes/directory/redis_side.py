"""Stores and followers that run beside one Redis in a test."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

from shared.directory.redis.follower import RedisFollower
from shared.directory.redis.store import RedisStore
from shared.directory.redis.url import open_client

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shared.directory.redis.seal import RecordSeals


async def until(condition: Callable[[], bool], *, timeout_s: float = 20.0) -> None:
    """Wait for it, but not for long."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 it is Redis that changes it
            await asyncio.sleep(0.005)


class Side:
    """Everything that runs beside one Redis; closed together."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()

    def store(self, url: str, *, timeout_s: float = 0.5) -> RedisStore:
        store = RedisStore(open_client(url, timeout_s=timeout_s))
        self._stack.push_async_callback(store.close)
        return store

    def follow(self, url: str, *, seals: RecordSeals | None = None) -> RedisFollower:
        follower = RedisFollower(self.store(url), seals=seals, poll_s=0.1)
        self.run(follower.run())
        return follower

    def run(self, work: Any) -> None:
        task = asyncio.create_task(work)

        async def end() -> None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        self._stack.push_async_callback(end)

    def at_end(self, end: Callable[[], Awaitable[None]]) -> None:
        self._stack.push_async_callback(end)

    async def close(self) -> None:
        await self._stack.aclose()
