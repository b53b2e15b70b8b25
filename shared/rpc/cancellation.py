"""Complete cleanup, although its call may be cancelled at any moment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine


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
