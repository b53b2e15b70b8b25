"""Several streams merged into one, in order of arrival."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

T = TypeVar("T")

#: Bound on buffered items: a slow reader slows the streams down, instead of filling memory.
MAX_WAITING = 64


class Merge(Generic[T]):
    """Merged streams.

    Streams can be added while `items` is read. Closing `items` closes all of them.
    """

    def __init__(self) -> None:
        #: Items, and the task of each stream that has ended.
        self._queue: asyncio.Queue[T | asyncio.Task[None]] = asyncio.Queue(MAX_WAITING)
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, stream: AsyncGenerator[T, None]) -> None:
        """Start to read a stream."""
        self._tasks.add(asyncio.create_task(self._read(stream)))

    async def items(self) -> AsyncGenerator[T, None]:
        """Yield the items of all streams. The first error of any stream ends it."""
        try:
            while self._tasks:
                item = await self._queue.get()
                if isinstance(item, asyncio.Task):
                    self._tasks.discard(item)
                    await item
                else:
                    yield item
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self, stream: AsyncGenerator[T, None]) -> None:
        task = asyncio.current_task()
        is_read = True
        try:
            async with aclosing(stream):
                async for item in stream:
                    await self._queue.put(item)
        except asyncio.CancelledError:
            is_read = False
            raise
        finally:
            if is_read and task is not None:
                await self._queue.put(task)
