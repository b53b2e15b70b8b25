"""KV blocks on a device for `nixl`: the needed interface, and verification of pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from shared.connector.protocol.block_copy import (
    block_ranges,
    checksum_blocks,
    copy_ranges,
    prepare,
)
from shared.connector.protocol.block_io import BlockAccess, BlockMemory

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from kernels.native.block_copy import Ranges
    from shared.kv.cut import Cut


class DeviceMemory(BlockMemory, Protocol):
    """Contiguous KV blocks in a device's memory.

    A block that is read is final: a sender has waited for the step that computed it, a receiver for
    the notification of its write. So nothing here waits for another stream.
    """

    @property
    def address(self) -> int:
        """Address of the first block."""
        ...

    @property
    def device_id(self) -> int | None:
        """Index of the CUDA device in this process; None for host memory in its place."""
        ...

    def use_here(self) -> None:
        """Make the device the current one of the calling thread."""
        ...

    def read(self, blocks: Sequence[int]) -> NDArray[np.uint8]:
        """Return a copy on the host, [len(blocks), block_bytes]. May be called in any thread."""
        ...


class DeviceIO(BlockAccess):
    """Blocks of a device, copied to the host for hashing only.

    So their checksums equal those of host memory, and each end may have its blocks on host or
    device. Copies and hashes run in threads, never on the event loop.
    """

    def __init__(self, memory: DeviceMemory) -> None:
        super().__init__(memory, inline_bytes=0)
        self._memory = memory
        prepare()

    def _hash(self, blocks: Sequence[int]) -> NDArray[np.uint64]:
        return checksum_blocks(list(self._memory.read(blocks)))

    def _gather(
        self, blocks: Sequence[int], cuts: Sequence[Cut], targets: Ranges | None
    ) -> NDArray[np.uint64]:
        rows = self._memory.read(blocks)
        return copy_ranges(targets, block_ranges(rows, range(len(rows)), cuts))

    def _scatter(
        self, blocks: Sequence[int], cuts: Sequence[Cut], sources: Ranges
    ) -> NDArray[np.uint64]:
        raise TypeError("a device's blocks are written by their sender")

    def _copy(
        self, blocks: Sequence[int], sources: Sequence[NDArray[np.uint8]]
    ) -> NDArray[np.uint64]:
        raise TypeError("a device's blocks are written by their sender")
