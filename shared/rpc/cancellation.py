"""Cleaning up completely, although the call it belongs to may be cancelled at any moment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine


async def run_to_end(cleanup: Coroutine[Any, Any, None]) -> None:
    """Run `cleanup` to its end, whatever happens to the caller; then pass a cancellation on.

    A peer that has what it wanted cancels its call at once, and that may strike in the middle of
    a `finally`. What was not freed by then would never be.
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
