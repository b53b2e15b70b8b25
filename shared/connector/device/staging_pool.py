"""Host blocks for transfers of an accelerator's blocks."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from shared.errors import TransferError, TransferFailure

if TYPE_CHECKING:
    from collections.abc import Sequence


class StagingPool:
    """Assigns host blocks. A transfer gets all that it needs at once, or waits for them.

    So no two transfers wait for each other. On one event loop; first come, first served.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        #: Ascending, so that assigned blocks are neighbours and are copied in few pieces.
        self._free = list(range(num_blocks))
        self._waiting: deque[tuple[int, asyncio.Future[list[int]]]] = deque()

    @property
    def num_free(self) -> int:
        """Number of free blocks."""
        return len(self._free)

    def take_now(self, num_blocks: int) -> list[int]:
        """Take blocks now; return them with `give`.

        Raises:
            TransferError: too few are free, or other callers wait for them.
        """
        if self._waiting or num_blocks > len(self._free):
            raise TransferError(
                TransferFailure.ABORTED,
                f"{num_blocks} staging blocks are needed and {len(self._free)} are free",
            )
        return self._take(num_blocks)

    async def take(self, num_blocks: int, timeout_s: float) -> list[int]:
        """Wait for blocks, and take them.

        Raises:
            TransferError: they were not free in time, or the pool is too small.
        """
        if num_blocks > self.num_blocks:
            raise TransferError(
                TransferFailure.OVERSIZED,
                f"{num_blocks} blocks for a staging pool of {self.num_blocks}",
            )
        if not self._waiting and num_blocks <= len(self._free):
            return self._take(num_blocks)
        place = (num_blocks, asyncio.get_running_loop().create_future())
        self._waiting.append(place)
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(place[1])
        except TimeoutError as error:
            raise TransferError(
                TransferFailure.TIMEOUT, f"no {num_blocks} staging blocks in {timeout_s} s"
            ) from error
        finally:
            self._leave(place)

    def give(self, blocks: Sequence[int]) -> None:
        """Return blocks to the pool."""
        self._free = sorted([*self._free, *blocks])
        self._serve()

    def _take(self, num_blocks: int) -> list[int]:
        taken, self._free = self._free[:num_blocks], self._free[num_blocks:]
        return taken

    def _serve(self) -> None:
        while self._waiting and self._waiting[0][0] <= len(self._free):
            num_blocks, future = self._waiting.popleft()
            future.set_result(self._take(num_blocks))

    def _leave(self, place: tuple[int, asyncio.Future[list[int]]]) -> None:
        """Remove a caller that no longer waits from the queue, and serve those after it."""
        if place in self._waiting:
            self._waiting.remove(place)
            place[1].cancel()
            self._serve()
