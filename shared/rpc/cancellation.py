"""Work that ends with the block it belongs to, and cleaning up that no cancellation cuts short."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine


@asynccontextmanager
async def running(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Do `work` for as long as the context is open; then it is cancelled, and has ended."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


async def run_to_end(cleanup: Coroutine[Any, Any, None]) -> None:
    """Run `cleanup` to its end, even if the caller is cancelled; then raise the cancellation.

    A peer that has got its answer cancels its call at once, perhaps in the middle of a `finally`.
    Anything that was not freed by then would never be freed.
    """
    task = asyncio.ensure_future(cleanup)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled
