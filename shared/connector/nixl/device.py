"""KV blocks on a device for `nixl`: what it needs of them, and how pieces are verified there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from shared.connector.protocol.block_copy import checksum_blocks, prepare
from shared.connector.protocol.block_io import BlockAccess, BlockMemory

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray


class DeviceMemory(BlockMemory, Protocol):
    """KV blocks where a device has them, one behind the other.

    A block that is read is final: a sender has waited for the step that computed it, a receiver for
    the notification of its write. So nothing here waits for another stream.
    """

    @property
    def address(self) -> int:
        """The address of the first block."""
        ...

    @property
    def device_id(self) -> int | None:
        """Which CUDA device of this process; None for host memory in a device's place."""
        ...

    def use_here(self) -> None:
        """Make the device the current one of the calling thread."""
        ...

    def read(self, blocks: Sequence[int]) -> NDArray[np.uint8]:
        """A copy on the host, [len(blocks), block_bytes]. In any thread."""
        ...


class DeviceIO(BlockAccess):
    """Blocks of a device come to the host to be hashed, and for nothing else.

    So their checksums are those of host memory, and each end may have its blocks where it likes.
    Copying and hashing take threads, never the event loop.
    """

    def __init__(self, memory: DeviceMemory) -> None:
        super().__init__(memory, inline_bytes=0)
        self._memory = memory
        prepare()

    def _hash(self, blocks: Sequence[int]) -> NDArray[np.uint64]:
        return checksum_blocks(list(self._memory.read(blocks)))

    def _copy(
        self, blocks: Sequence[int], sources: Sequence[NDArray[np.uint8]]
    ) -> NDArray[np.uint64]:
        raise TypeError("a device's blocks are written by their sender")
