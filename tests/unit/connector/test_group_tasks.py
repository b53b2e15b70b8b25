"""Several transfers as one: what is left of those that were given up."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from shared.connector.group.tasks import all_or_none
from shared.errors import TransferError, TransferFailure


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_the_errors_of_given_up_transfers_are_not_left_for_the_log(is_cancelled: bool) -> None:
    """Nor where the caller is cancelled while it gives up."""
    found: list[dict[str, Any]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
        over = asyncio.Event()

        async def fail() -> None:
            raise TransferError(TransferFailure.TIMEOUT, "late")

        async def wait() -> None:
            try:
                await over.wait()
            finally:
                raise TransferError(TransferFailure.ABORTED, "given up")

        async def give_up() -> None:
            over.set()
            if is_cancelled:
                caller.cancel()
                await asyncio.sleep(0)

        works = {(0, 0): fail(), (1, 0): wait()}
        caller = asyncio.create_task(all_or_none(works, give_up))
        if is_cancelled:
            with pytest.raises(asyncio.CancelledError):
                await caller
        else:
            with pytest.raises(TransferError, match="rank 0 to rank 0: late"):
                await caller

    asyncio.run(run())
    gc.collect()
    assert not found


@pytest.mark.parametrize("num_turns", range(6))
async def test_a_caller_that_is_cancelled_leaves_nothing_open(num_turns: int) -> None:
    go = asyncio.Event()
    opened: set[int] = set()

    async def connect(number: int) -> int:
        await go.wait()
        opened.add(number)
        return number

    async def give_up() -> None:
        opened.clear()

    caller = asyncio.create_task(
        all_or_none({(0, number): connect(number) for number in (1, 2)}, give_up)
    )
    await asyncio.sleep(0)
    go.set()
    for _ in range(num_turns):
        await asyncio.sleep(0)
    caller.cancel()
    try:
        found = await caller
    except asyncio.CancelledError:
        assert not opened
    else:
        assert set(found.values()) == opened == {1, 2}
