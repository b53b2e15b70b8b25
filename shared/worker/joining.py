"""Brings a worker into its directory: Redis, or the one that each router has."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from shared.directory.redis.directory import RedisDirectory
from shared.directory.redis.store import RedisStore
from shared.directory.redis.url import open_client
from shared.directory.remote import RemoteDirectory
from shared.worker.membership import Membership

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AsyncExitStack

    from shared.worker.parts import WorkerParts


def open_directories(
    parts: WorkerParts, stack: AsyncExitStack
) -> Sequence[RemoteDirectory | RedisDirectory]:
    """The directories that the settings name; what they hold open closes with the stack.

    Raises:
        ConfigError: the URL of Redis is none.
    """
    config = parts.config
    if config.redis_url is None:
        return [RemoteDirectory(parts.channels.get(address)) for address in config.directory]
    store = RedisStore(open_client(config.redis_url, password_file=config.redis_password_file))
    stack.push_async_callback(store.close)
    return [RedisDirectory(store)]


def join(
    parts: WorkerParts,
    address: str,
    directory: RemoteDirectory | RedisDirectory,
    stack: AsyncExitStack,
) -> tuple[Membership, asyncio.Task[None]]:
    """Keep the worker, served at `address`, in a directory until the stack closes.

    The task ends early only if the directory refuses the worker.
    """
    membership = Membership(
        record=parts.record(address),
        registry=directory,
        blocks=directory,
        engine=parts.engine,
        gate=parts.gate,
    )
    parts.engine.on_cache_change(membership.note)
    task = asyncio.create_task(membership.run())

    async def end() -> None:
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    stack.push_async_callback(end)
    return membership, task


def reason_of(task: asyncio.Task[None]) -> str:
    """Why a membership that is over has ended."""
    error = task.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)
