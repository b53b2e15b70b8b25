"""Reading and writing a worker's KV blocks without holding up its event loop.

Small pieces are handled on the spot, because a thread costs more than they do; large ones go to
threads, which work without the interpreter lock. A piece that has begun is finished: it takes a
millisecond or two.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from shared.connector.block_copy import checksum_blocks, copy_blocks, prepare
from shared.connector.checksum import piece_checksum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from shared.kv.memory import KVMemory

_T = TypeVar("_T")
#: A tenth of a millisecond at memory speed; it may be ten times slower and still not be felt.
INLINE_BYTES = 1 << 20
#: Two pieces at a time: while one is being answered for, the memory is not idle.
NUM_THREADS = 2


class Activity:
    """Work in progress on the blocks of one transfer, so that whoever ends it can end that too."""

    def __init__(self) -> None:
        self.stopped = False
        #: By this process, from one place in its memory to another.
        self.num_copied_bytes = 0
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
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="baton-transfer")

    def check(self, blocks: Sequence[int]) -> None:
        """Raise ValueError if any of `blocks` is not a block of this memory."""
        if blocks and (min(blocks) < 0 or max(blocks) >= len(self._rows)):
            raise ValueError(f"blocks {min(blocks)}..{max(blocks)} of {len(self._rows)}")

    def parts(self, blocks: Sequence[int]) -> list[NDArray[np.uint8]]:
        """The bytes of `blocks` in order, neighbours as one flat array. Do not keep them."""
        return cut(self._rows, blocks)

    def _each(self, blocks: Sequence[int]) -> list[NDArray[np.uint8]]:
        return [self._rows[block] for block in blocks]

    async def write(
        self,
        blocks: Sequence[int],
        sources: Sequence[NDArray[np.uint8]] | None,
        activity: Activity,
    ) -> int | None:
        """Copy `sources`, one after the other, into `blocks`; the checksum of what is there now.

        `sources` are whole blocks, neighbours perhaps as one flat array. Without any nothing is
        copied: somebody else has written the blocks.

        None if the activity was stopped on the way: nothing more is written then.
        """
        if sources is None:
            return await self.checksum(blocks, activity)
        work = partial(_copy, self._each(blocks), sources, activity)
        checksum = await self._run(work, len(blocks), activity)
        activity.num_copied_bytes += 0 if checksum is None else len(blocks) * self._block_bytes
        return checksum

    async def checksum(self, blocks: Sequence[int], activity: Activity) -> int | None:
        """The checksum of `blocks` as a piece, or None if the activity was stopped."""
        work = partial(_checksum, self._each(blocks), activity)
        return await self._run(work, len(blocks), activity)

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


def cut(rows: NDArray[np.uint8], blocks: Sequence[int]) -> list[NDArray[np.uint8]]:
    """`blocks` of `rows`, [num_blocks, block_bytes], in order, neighbours as one flat array."""
    return [rows[start:end].reshape(-1) for start, end in _runs(blocks)]


def _runs(blocks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Neighbouring blocks as (first, one past the last)."""
    start = blocks[0]
    for block, following in pairwise(blocks):
        if following != block + 1:
            yield start, block + 1
            start = following
    yield start, blocks[-1] + 1


def _copy(
    targets: Sequence[NDArray[np.uint8]], sources: Sequence[NDArray[np.uint8]], activity: Activity
) -> int | None:
    if activity.stopped:
        return None
    block_bytes = targets[0].size
    blocks = [block for source in sources for block in source.reshape(-1, block_bytes)]
    return piece_checksum(copy_blocks(targets, blocks))


def _checksum(blocks: Sequence[NDArray[np.uint8]], activity: Activity) -> int | None:
    return None if activity.stopped else piece_checksum(checksum_blocks(blocks))
