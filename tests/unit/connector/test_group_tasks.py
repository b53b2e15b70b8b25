"""Several transfers as one: what is left of those that were given up."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from shared.connector.group.tasks import all_or_none
from shared.errors import TransferError, TransferFailure


def test_the_errors_of_given_up_transfers_are_not_left_for_the_log() -> None:
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

        with pytest.raises(TransferError, match="rank 0 to rank 0: late"):
            await all_or_none({(0, 0): fail(), (1, 0): wait()}, give_up)

    asyncio.run(run())
    gc.collect()
    assert not found
