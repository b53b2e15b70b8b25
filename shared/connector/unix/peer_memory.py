"""A peer's KV memory, mapped read-only into this process."""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
from typing import TYPE_CHECKING

import numpy as np

from shared.connector.protocol.block_copy import block_ranges
from shared.connector.protocol.block_io import neighbours
from shared.errors import TransferError, TransferFailure

if TYPE_CHECKING:
    from shared.connector.parts import BlockParts
    from shared.connector.protocol.frame import Frame
    from shared.connector.protocol.inbound import Content


class PeerMemory:
    """Maps the file behind `fd`, which stays the caller's, as `hello` describes it.

    Only files whose size is sealed are mapped: reading past the end of a file that its owner has
    shortened would kill this process.

    Raises:
        TransferError: it is not such a file, or not of that size.
    """

    def __init__(self, fd: int, hello: Frame) -> None:
        num_bytes = hello.length
        if num_bytes == 0 or hello.num_blocks == 0 or num_bytes % hello.num_blocks:
            raise TransferError(
                TransferFailure.LAYOUT_MISMATCH,
                f"{hello.num_blocks} blocks in {hello.length} bytes",
            )
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
            status = os.fstat(fd)
        except OSError as error:
            raise TransferError(TransferFailure.CORRUPT, f"not a memory file: {error}") from error
        if not seals & fcntl.F_SEAL_SHRINK or not stat.S_ISREG(status.st_mode):
            raise TransferError(TransferFailure.CORRUPT, "the memory's size is not sealed")
        if status.st_size != num_bytes:
            raise TransferError(
                TransferFailure.LAYOUT_MISMATCH, f"{status.st_size} bytes, not {num_bytes}"
            )
        try:
            self._map = mmap.mmap(fd, num_bytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        except OSError as error:
            raise TransferError(TransferFailure.CORRUPT, f"cannot be mapped: {error}") from error
        flat = np.frombuffer(self._map, dtype=np.uint8)
        self._rows = flat.reshape(hello.num_blocks, -1)

    def blocks(self, frame: Frame, parts: BlockParts | None) -> Content:
        """Return the blocks that a piece names, in place, neighbours as one flat array.

        With `parts`, the ranges of those.

        Raises:
            TransferError: OUT_OF_RANGE, or LAYOUT_MISMATCH if the peer's blocks have another size
                than those that the parts are of.
        """
        sources = frame.sources
        if len(sources) != frame.num_blocks or int(sources.max()) >= len(self._rows):
            raise TransferError(TransferFailure.OUT_OF_RANGE, "source blocks that do not exist")
        if parts is None:
            return neighbours(self._rows, sources.tolist())
        indices = slice(frame.first_index, frame.first_index + frame.num_blocks)
        cuts = parts.sent(indices)
        if self._rows.shape[1] != parts.sender_block_bytes:
            size = f"blocks of {self._rows.shape[1]} bytes, not {parts.sender_block_bytes}"
            raise TransferError(TransferFailure.LAYOUT_MISMATCH, size)
        if len(cuts) != frame.num_blocks:
            raise TransferError(TransferFailure.OUT_OF_RANGE, "more blocks than the ticket has")
        return block_ranges(self._rows, sources.tolist(), cuts)

    def close(self) -> None:
        """Unmap, at the latest when the last array of `blocks` is freed."""
        self._rows = self._rows[:0].copy()
        try:
            self._map.close()
        except BufferError:
            # An error's traceback still refers to a block; the mapping is freed with it.
            return
