"""Several transfers as one: all succeed, or all end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from shared.errors import TransferError, TransferFailure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from shared.kv.hand_off import Pair

_T = TypeVar("_T")


async def all_or_none(
    works: Mapping[Pair, Coroutine[object, object, _T]], give_up: Callable[[], Awaitable[None]]
) -> dict[Pair, _T]:
    """Run all; return their results.

    After the first failure, or if the caller is cancelled, `give_up` must make the others end; this
    returns after they have.

    Raises:
        TransferError: the first failure, with the numbers of both ranks.
    """
    tasks = {asyncio.ensure_future(work): pair for pair, work in works.items()}
    for task in tasks:
        # Of a caller that is cancelled while it gives up, too: it waits no longer.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
    first: TransferError | None = None
    have_all = False
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failures = [error for task in done if (error := _failure(task, tasks[task]))]
        # Those that the other side's group has given up say less than the one that it did so for.
        failures.sort(key=lambda error: error.reason is TransferFailure.ABORTED)
        first = failures[0] if failures else None
        have_all = first is None
    finally:
        # Also if the caller was cancelled when all had just succeeded: it gets no results.
        if not have_all:
            await give_up()
            for task in tasks:
                task.cancel()
            # Their own errors are those of an end that was asked for.
            await asyncio.gather(*tasks, return_exceptions=True)
            # Those that a late connection has begun.
            await give_up()
    if first is not None:
        raise first
    return {pair: task.result() for task, pair in tasks.items()}


def _failure(task: asyncio.Future[_T], pair: Pair) -> TransferError | None:
    """Return the failure of a finished task, if it has failed; other errors are raised."""
    error = task.exception()
    if error is None:
        return None
    if not isinstance(error, TransferError):
        raise error
    return TransferError(error.reason, f"rank {pair[0]} to rank {pair[1]}: {error.detail}")


async def settle(*works: Awaitable[None]) -> None:
    """Run all to their ends, whichever fails; raise the first failure then."""
    results = await asyncio.gather(*works, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
