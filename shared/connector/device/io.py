"""The blocks of a device for the transfer machinery, and a peer's that they are copied from."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from shared.connector.protocol.block_io import BlockAccess
from shared.errors import TransferError, TransferFailure

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shared.connector.device.memory import DeviceMemory, MappedMemory
    from shared.connector.protocol.block_io import PieceBlocks
    from shared.connector.protocol.frame import Frame


class PeerDevice:
    """A peer's memory on a device. It stays mapped as long as a copy reads it."""

    def __init__(self, memory: MappedMemory, block_bytes: int) -> None:
        self._memory = memory
        self._block_bytes = block_bytes
        self._changed = threading.Condition()
        self._num_copies = 0
        self._closed = False

    def blocks(self, frame: Frame) -> list[DevicePart]:
        """The blocks that a piece names.

        Raises:
            TransferError: OUT_OF_RANGE.
        """
        sources = frame.sources
        if len(sources) != frame.num_blocks or int(sources.max()) >= self._memory.num_blocks:
            raise TransferError(TransferFailure.OUT_OF_RANGE, "source blocks that do not exist")
        blocks = tuple(sources.tolist())
        return [DevicePart(self, blocks, len(blocks) * self._block_bytes)]

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy blocks of it to `targets` of this worker's.

        Raises:
            TransferError: it is unmapped already.
        """
        with self._changed:
            if self._closed:
                raise TransferError(TransferFailure.PEER_LOST, "its memory is unmapped")
            self._num_copies += 1
        try:
            self._memory.copy(sources, targets)
        finally:
            with self._changed:
                self._num_copies -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Unmap it once no copy reads it, which may take as long as a copy. Idempotent."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.wait_for(lambda: self._num_copies == 0)
        self._memory.close()


@dataclass(frozen=True, slots=True)
class DevicePart:
    """Blocks of a peer that make a piece."""

    peer: PeerDevice
    blocks: tuple[int, ...]
    #: Bytes.
    size: int


class DeviceIO(BlockAccess):
    """Copies and checksums are the device's; a thread waits for them, never the event loop."""

    def __init__(self, memory: DeviceMemory) -> None:
        super().__init__(memory, inline_bytes=0)
        self._memory = memory

    def _copy(self, blocks: Sequence[int], sources: Sequence[PieceBlocks]) -> NDArray[np.uint64]:
        # The transport of device memory makes no others, and one for each piece.
        (part,) = cast("Sequence[DevicePart]", sources)
        part.peer.copy(part.blocks, blocks)
        return self._memory.checksums(blocks)

    def _hash(self, blocks: Sequence[int]) -> NDArray[np.uint64]:
        return self._memory.checksums(blocks)
