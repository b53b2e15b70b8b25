"""Several streams merged into one, in order of arrival."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

T = TypeVar("T")

#: Bound on buffered items: a slow reader slows the streams down, instead of filling memory.
MAX_WAITING = 64
#: Streams that begin before the event loop looks at others.
AT_ONCE = 4


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

    def add_all(self, streams: Iterable[AsyncGenerator[T, None]]) -> None:
        """Start to read streams, a few at a time: others run meanwhile."""
        self._tasks.add(asyncio.create_task(self._start(streams)))

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

    async def _start(self, streams: Iterable[AsyncGenerator[T, None]]) -> None:
        for number, stream in enumerate(streams, 1):
            self.add(stream)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        task = asyncio.current_task()
        if task is not None:
            await self._queue.put(task)

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
