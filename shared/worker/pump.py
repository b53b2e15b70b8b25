"""Runs the source of a call's answers in a task of its own, with signs of life meanwhile."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeVar

from shared.rpc.cancellation import run_to_end

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

T = TypeVar("T")


async def pumped(
    source: AsyncGenerator[T, None],
    *,
    interval_s: float | None = None,
    sign: Callable[[], T | None] = lambda: None,
) -> AsyncGenerator[T, None]:
    """Yield the items of `source`, and, after each `interval_s` without any, the result of `sign`,
    if any.

    `source` runs from its first line to its last in one task, which runs nothing else: cancelling
    that task interrupts `source` and not the caller. When this is closed, `source` has been
    cancelled and has cleaned up. Its items are buffered here without a bound: `source` must bound
    them.
    """
    items: deque[T] = deque()
    news = asyncio.Event()

    async def run() -> None:
        async with aclosing(source):
            async for item in source:
                items.append(item)
                news.set()

    task = asyncio.create_task(run())
    task.add_done_callback(lambda _: news.set())
    try:
        while not task.done() or items:
            if await _within(news, interval_s):
                news.clear()
                while items:
                    yield items.popleft()
            elif (extra := sign()) is not None:
                yield extra
        task.result()
    finally:
        task.cancel()
        await run_to_end(_ended(task))


async def _within(news: asyncio.Event, interval_s: float | None) -> bool:
    try:
        async with asyncio.timeout(interval_s):
            await news.wait()
    except TimeoutError:
        return False
    return True


async def _ended(task: asyncio.Task[None]) -> None:
    await asyncio.gather(task, return_exceptions=True)
