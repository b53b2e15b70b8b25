"""Reads and writes of a worker's KV blocks without delaying its event loop.

Small pieces are processed on the loop, because a thread costs more than they do; large ones in
threads, which work without the interpreter lock. A begun piece is finished: it takes a millisecond
or two.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from kernels.bf16_stream import StreamError
from kernels.bf16_stream.native import pack_ranges, stream_room, unpack_ranges
from kernels.native.block_copy import SHORTEST_BLOCK_BYTES, Ranges
from shared.connector.protocol.block_copy import (
    block_ranges,
    checksum_blocks,
    consecutive_ranges,
    copy_blocks,
    copy_ranges,
    has_library,
    prepare,
)
from shared.connector.protocol.checksum import piece_checksum
from shared.errors import InternalError, TransferError, TransferFailure
from shared.kv.cut import Cut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from shared.connector.protocol.link import PieceParts
    from shared.kv.layout import KVLayout
    from shared.kv.memory import KVMemory

_T = TypeVar("_T")
#: A tenth of a millisecond at memory speed; ten times that would still be acceptable.
INLINE_BYTES = 1 << 20
#: A stream of fewer bytes is not much shorter than they are.
LEAST_PACKED_BYTES = 1024
#: Packed pieces whose memory is kept: as many as are under way with the usual limits.
_MOST_ROOMS = 4
#: Two pieces at a time: the memory stays busy while one piece is acknowledged.
NUM_THREADS = 2


@dataclass(frozen=True, slots=True)
class Packed:
    """The streams of a piece's blocks, or of parts of them, one after the other."""

    streams: NDArray[np.uint8]


class Activity:
    """The work on the blocks of one transfer; ending the transfer stops the work."""

    def __init__(self) -> None:
        self.stopped = False
        #: Bytes copied by this process within its own memory.
        self.num_copied_bytes = 0
        self._running: set[asyncio.Future[object]] = set()

    def add(self, future: asyncio.Future[_T]) -> None:
        """Count `future` as running until it is done, even if its caller no longer waits."""
        self._running.add(future)  # type: ignore[arg-type]  # Future is invariant; we only wait
        future.add_done_callback(self._running.discard)

    async def stop(self) -> None:
        """Stop. After the return no thread accesses the blocks."""
        self.stopped = True
        if self._running:
            await asyncio.wait(self._running)


class BlockMemory(Protocol):
    """The shape of a worker's KV memory, on the host or on a device."""

    @property
    def layout(self) -> KVLayout:
        """Layout of each block."""
        ...

    @property
    def num_blocks(self) -> int:
        """Number of blocks."""
        ...

    @property
    def num_bytes(self) -> int:
        """Number of bytes of all blocks."""
        ...


class BlockAccess(ABC):
    """The blocks of one memory. Subclasses define how they are copied and hashed."""

    def __init__(self, memory: BlockMemory, *, inline_bytes: int | None = None) -> None:
        """Set the limit: pieces of up to `inline_bytes` are processed on the loop."""
        self._num_blocks = memory.num_blocks
        self._block_bytes = memory.layout.block_bytes
        self._inline_bytes = INLINE_BYTES if inline_bytes is None else inline_bytes
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="baton-transfer")

    @property
    def can_pack(self) -> bool:
        """Whether `pack` works, and `write` takes packed pieces."""
        return False

    @abstractmethod
    def _copy(
        self, blocks: Sequence[int], sources: Sequence[NDArray[np.uint8]]
    ) -> NDArray[np.uint64]:
        """Copy `sources` into `blocks`; return the checksums of the result. In any thread."""

    @abstractmethod
    def _hash(self, blocks: Sequence[int]) -> NDArray[np.uint64]:
        """Return the checksum of each block. In any thread."""

    @abstractmethod
    def _scatter(
        self, blocks: Sequence[int], cuts: Sequence[Cut], sources: Ranges
    ) -> NDArray[np.uint64]:
        """Copy `sources` into parts of `blocks`; return their checksums. In any thread."""

    @abstractmethod
    def _gather(
        self, blocks: Sequence[int], cuts: Sequence[Cut], targets: Ranges | None
    ) -> NDArray[np.uint64]:
        """Copy parts of `blocks` to `targets`, if any; return their checksums. In any thread."""

    def _pack(
        self, blocks: Sequence[int], cuts: Sequence[Cut]
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
        """Return the streams of parts of `blocks`, and the parts' checksums. In any thread."""
        raise InternalError("this memory is not packed")

    def _unpack(
        self, blocks: Sequence[int], cuts: Sequence[Cut], packed: Packed
    ) -> NDArray[np.uint64]:
        """Unpack to parts of `blocks`; return their checksums. In any thread.

        Raises:
            TransferError: CORRUPT.
        """
        raise InternalError("this memory is not packed")

    def check(self, blocks: Sequence[int]) -> None:
        """Raise ValueError if any of `blocks` is not a block of this memory."""
        if blocks and (min(blocks) < 0 or max(blocks) >= self._num_blocks):
            raise ValueError(f"blocks {min(blocks)}..{max(blocks)} of {self._num_blocks}")

    async def write(
        self,
        blocks: Sequence[int],
        sources: Sequence[NDArray[np.uint8]] | Ranges | Packed | None,
        activity: Activity,
        cuts: Sequence[Cut] | None = None,
    ) -> int | None:
        """Copy `sources`, one after the other, into `blocks`; return the checksum of the result.

        `sources` are whole blocks, neighbours perhaps as one part. Without any nothing is copied:
        the sender has written the blocks. With `cuts`, of each block as many bytes are copied to
        those of its ranges.

        None if the activity was stopped meanwhile: nothing more is written then.

        Raises:
            TransferError: CORRUPT, `sources` are no streams of these blocks.
        """
        if sources is None:
            return await self.checksum(blocks, activity, cuts)
        if isinstance(sources, Packed):
            work = partial(self._unpack, blocks, cuts or self._whole(blocks), sources)
        elif cuts is not None:
            if not isinstance(sources, Ranges):
                sources = consecutive_ranges(sources, [cut.num_bytes for cut in cuts])
            work = partial(self._scatter, blocks, cuts, sources)
        else:
            assert not isinstance(sources, Ranges)  # only parts are cut
            work = partial(self._copy, blocks, sources)
        num_bytes = self._num_bytes(blocks, cuts)
        checksum = await self._run(partial(_unless_stopped, work, activity), num_bytes, activity)
        activity.num_copied_bytes += 0 if checksum is None else num_bytes
        return checksum

    async def checksum(
        self, blocks: Sequence[int], activity: Activity, cuts: Sequence[Cut] | None = None
    ) -> int | None:
        """Return the checksum of `blocks`, or of a part of each, as a piece.

        None if the activity was stopped.
        """
        if cuts is None:
            work = partial(self._hash, blocks)
        else:
            work = partial(self._gather, blocks, cuts, None)
        num_bytes = self._num_bytes(blocks, cuts)
        return await self._run(partial(_unless_stopped, work, activity), num_bytes, activity)

    async def collect(
        self, blocks: Sequence[int], cuts: Sequence[Cut], activity: Activity
    ) -> tuple[NDArray[np.uint8], int | None]:
        """Return a copy of the parts of `blocks`, one after the other, and their checksum.

        The checksum is None if the activity was stopped.
        """
        sizes = [cut.num_bytes for cut in cuts]
        copy = np.empty(sum(sizes), np.uint8)

        work = partial(self._gather, blocks, cuts, consecutive_ranges([copy], sizes))
        checksum = await self._run(partial(_unless_stopped, work, activity), len(copy), activity)
        activity.num_copied_bytes += 0 if checksum is None else len(copy)
        return copy, checksum

    async def pack(
        self, blocks: Sequence[int], cuts: Sequence[Cut] | None, activity: Activity
    ) -> tuple[NDArray[np.uint8], int | None]:
        """Return a packed copy of `blocks`, or of parts of them: see `Packed`.

        With the checksum of what was packed; None if the activity was stopped.
        """
        parts = cuts or self._whole(blocks)

        def work() -> tuple[NDArray[np.uint8], int | None]:
            if activity.stopped:
                return np.empty(0, np.uint8), None
            streams, checksums = self._pack(blocks, parts)
            return streams, piece_checksum(checksums)

        made = await self._run(work, self._num_bytes(blocks, cuts), activity)
        activity.num_copied_bytes += len(made[0])
        return made

    async def in_thread(self, work: Callable[[], _T]) -> _T:
        """Run a short blocking function in a thread. Cancelling does not stop it."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Close. Every activity must have been stopped."""
        self._threads.shutdown(wait=True)

    def _whole(self, blocks: Sequence[int]) -> list[Cut]:
        return [Cut(((0, self._block_bytes),))] * len(blocks)

    def _num_bytes(self, blocks: Sequence[int], cuts: Sequence[Cut] | None) -> int:
        if cuts is None:
            return len(blocks) * self._block_bytes
        return sum(cut.num_bytes for cut in cuts)

    async def _run(self, work: Callable[[], _T], num_bytes: int, activity: Activity) -> _T:
        if num_bytes <= self._inline_bytes:
            result = work()
            # A run of small pieces must not occupy the loop either.
            await asyncio.sleep(0)
            return result
        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        activity.add(future)
        # Cancelling the caller does not stop a thread: the activity waits for it.
        return await asyncio.shield(future)


class BlockIO(BlockAccess):
    """The blocks of one `KVMemory`. `close` drops every array taken from it."""

    def __init__(self, memory: KVMemory) -> None:
        super().__init__(memory)
        self._rows = memory.blocks  # [num_blocks, block_bytes]
        self._rooms: list[NDArray[np.uint8]] = []
        self._rooms_lock = threading.Lock()
        prepare()

    @property
    def can_pack(self) -> bool:
        """See `BlockAccess`."""
        return has_library()

    def payload(
        self,
        blocks: Sequence[int],
        parts: PieceParts | None = None,
        copy: NDArray[np.uint8] | None = None,
    ) -> list[NDArray[np.uint8]]:
        """Return the bytes of a piece in order, neighbours as one flat array. Do not keep them.

        copy: see `Wire.send_piece`.
        """
        if copy is not None:
            return [copy]
        if parts is None or all(cut.ranges == ((0, self._block_bytes),) for cut in parts.sent):
            return neighbours(self._rows, blocks)
        found = []
        for block, cut in zip(blocks, parts.sent, strict=True):
            ((start, size),) = cut.ranges
            found.append(self._rows[block, start : start + size])
        return found

    def reuse(self, copy: NDArray[np.uint8]) -> None:
        """Take back the memory of a packed piece, which nothing refers to any more."""
        if isinstance(copy.base, np.ndarray):
            with self._rooms_lock:
                # The largest are kept, the smallest of them first.
                self._rooms.append(copy.base)
                self._rooms.sort(key=lambda room: room.nbytes)
                del self._rooms[:-_MOST_ROOMS]

    def close(self) -> None:
        """See `BlockAccess.close`."""
        super().close()
        self._rooms.clear()
        self._rows = np.empty((0, self._block_bytes), np.uint8)

    def _copy(
        self, blocks: Sequence[int], sources: Sequence[NDArray[np.uint8]]
    ) -> NDArray[np.uint64]:
        each = [block for array in sources for block in array.reshape(-1, self._block_bytes)]
        return copy_blocks(self._each(blocks), each)

    def _hash(self, blocks: Sequence[int]) -> NDArray[np.uint64]:
        return checksum_blocks(self._each(blocks))

    def _scatter(
        self, blocks: Sequence[int], cuts: Sequence[Cut], sources: Ranges
    ) -> NDArray[np.uint64]:
        return copy_ranges(block_ranges(self._rows, blocks, cuts), sources)

    def _gather(
        self, blocks: Sequence[int], cuts: Sequence[Cut], targets: Ranges | None
    ) -> NDArray[np.uint64]:
        return copy_ranges(targets, block_ranges(self._rows, blocks, cuts))

    def _pack(
        self, blocks: Sequence[int], cuts: Sequence[Cut]
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
        sources = block_ranges(self._rows, blocks, cuts)
        return pack_ranges(sources, self._room(stream_room(sources)))

    def _room(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return memory for streams, used before perhaps: its pages are there."""
        with self._rooms_lock:
            for at, room in enumerate(self._rooms):
                if room.nbytes >= num_bytes:
                    return self._rooms.pop(at)
        return np.empty(num_bytes, np.uint8)

    def _unpack(
        self, blocks: Sequence[int], cuts: Sequence[Cut], packed: Packed
    ) -> NDArray[np.uint64]:
        if min(cut.num_bytes for cut in cuts) < SHORTEST_BLOCK_BYTES:
            raise TransferError(TransferFailure.CORRUPT, "a packed piece of parts too short for it")
        try:
            return unpack_ranges(packed.streams, block_ranges(self._rows, blocks, cuts))
        except StreamError as error:
            raise TransferError(TransferFailure.CORRUPT, f"a packed piece: {error}") from error

    def _each(self, blocks: Sequence[int]) -> list[NDArray[np.uint8]]:
        return [self._rows[block] for block in blocks]


def neighbours(rows: NDArray[np.uint8], blocks: Sequence[int]) -> list[NDArray[np.uint8]]:
    """Return `blocks` of `rows` [num_blocks, block_bytes], neighbours as one flat array."""
    return [rows[start:end].reshape(-1) for start, end in _runs(blocks)]


def _runs(blocks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield runs of neighbouring blocks as (first, one past the last)."""
    start = blocks[0]
    for block, following in pairwise(blocks):
        if following != block + 1:
            yield start, block + 1
            start = following
    yield start, blocks[-1] + 1


def _unless_stopped(work: Callable[[], NDArray[np.uint64]], activity: Activity) -> int | None:
    """Return the checksum of a piece, or None if the activity was stopped before it began."""
    return None if activity.stopped else piece_checksum(work())
