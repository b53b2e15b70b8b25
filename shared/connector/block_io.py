"""Reading and writing a worker's KV blocks without holding up its event loop.

Small pieces are handled on the spot, because a thread costs more than they do; large ones go to
threads, which work without the interpreter lock. A piece that has begun is finished: it takes less
than a millisecond.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from shared.connector.block_copy import checksum_blocks, copy_blocks, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from shared.kv.memory import KVMemory

_T = TypeVar("_T")
#: A tenth of a millisecond at memory speed; it may be ten times slower and still not be felt.
INLINE_BYTES = 1 << 20
_NUM_THREADS = 2


class Activity:
    """Work in progress on the blocks of one transfer, so that whoever ends it can end that too."""

    def __init__(self) -> None:
        self.stopped = False
        self._running: set[asyncio.Future[object]] = set()

    def add(self, future: asyncio.Future[_T]) -> None:
        """Count `future` as running until it is done, whether or not somebody waits for it."""
        self._running.add(future)  # type: ignore[arg-type]  # Future is invariant; we only wait
        future.add_done_callback(self._running.discard)

    async def stop(self) -> None:
        """Once this returns, no thread touches the blocks."""
        self.stopped = True
        if self._running:
            await asyncio.wait(self._running)


class BlockIO:
    """The blocks of one `KVMemory`. `close` drops every array taken from it."""

    def __init__(self, memory: KVMemory) -> None:
        self._rows = memory.blocks  # [num_blocks, block_bytes]
        self._block_bytes = memory.layout.block_bytes
        prepare()
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="baton-transfer")

    @property
    def rows(self) -> NDArray[np.uint8]:
        """All blocks, [num_blocks, block_bytes]. Do not keep it."""
        return self._rows

    def check(self, blocks: Sequence[int]) -> None:
        """Raise ValueError if any of `blocks` is not a block of this memory."""
        if blocks and (min(blocks) < 0 or max(blocks) >= len(self._rows)):
            raise ValueError(f"blocks {min(blocks)}..{max(blocks)} of {len(self._rows)}")

    async def write(
        self, blocks: Sequence[int], sources: Sequence[NDArray[np.uint8]], activity: Activity
    ) -> NDArray[np.uint64] | None:
        """Copy `sources` into `blocks`; return the checksums of what is there now.

        None if the activity was stopped on the way: nothing more is written then.
        """
        targets = [self._rows[block] for block in blocks]
        return await self._run(
            partial(_copy_blocks, targets, sources, activity), len(blocks), activity
        )

    async def checksums(
        self, blocks: Sequence[int], activity: Activity
    ) -> NDArray[np.uint64] | None:
        """The checksums of `blocks`, or None if the activity was stopped on the way."""
        rows = [self._rows[block] for block in blocks]
        return await self._run(partial(_checksum_blocks, rows, activity), len(blocks), activity)

    async def in_thread(self, work: Callable[[], _T]) -> _T:
        """Run something that blocks for a moment. Cancelling does not stop it."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Every activity must have been stopped."""
        self._threads.shutdown(wait=True)
        self._rows = np.empty((0, self._block_bytes), np.uint8)

    async def _run(self, work: Callable[[], _T], num_blocks: int, activity: Activity) -> _T:
        if num_blocks * self._block_bytes <= INLINE_BYTES:
            result = work()
            # A run of small pieces must not keep the loop to itself either.
            await asyncio.sleep(0)
            return result
        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        activity.add(future)
        # Cancelling the caller does not stop a thread: the activity answers for it.
        return await asyncio.shield(future)


def _copy_blocks(
    targets: Sequence[NDArray[np.uint8]], sources: Sequence[NDArray[np.uint8]], activity: Activity
) -> NDArray[np.uint64] | None:
    return None if activity.stopped else copy_blocks(targets, sources)


def _checksum_blocks(
    rows: Sequence[NDArray[np.uint8]], activity: Activity
) -> NDArray[np.uint64] | None:
    return None if activity.stopped else checksum_blocks(rows)
