"""Copies between the engine's blocks and the host tier's, with checksums of the copied bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from shared.connector.protocol.block_copy import checksum_blocks, copy_blocks
from shared.kv.memory import KVMemory

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shared.engine.memory.kv_staging import KVStaging


class BlockCopies(Protocol):
    """The host tier's memory region, and copies to and from it. Call from one thread only."""

    @property
    def host(self) -> NDArray[np.uint8]:
        """The region: [slots, block bytes]."""
        ...

    @property
    def memory(self) -> KVMemory | None:
        """The region, for peers to fill; None if they must not, because they send parts."""
        ...

    def to_host(
        self, blocks: Sequence[int], slots: Sequence[int], groups: Sequence[int]
    ) -> NDArray[np.uint64]:
        """Copy the engine's `blocks` to `slots`; return the checksums of the copies.

        groups: by block, the group of layers that it has.
        """
        ...

    def to_device(
        self, slots: Sequence[int], blocks: Sequence[int], groups: Sequence[int]
    ) -> NDArray[np.uint64]:
        """Copy `slots` to the engine's `blocks`; return the checksums of the copied bytes."""
        ...

    def close(self) -> None:
        """Free the memory."""
        ...


class MemoryCopies:
    """For an engine whose blocks are in host memory too: each byte is read once."""

    def __init__(self, engine_memory: KVMemory, num_slots: int) -> None:
        """Allocate.

        Raises:
            ConfigError: the memory cannot be allocated.
        """
        self._memory = KVMemory(engine_memory.layout, num_slots)
        self._device = engine_memory.blocks
        self._host = self._memory.blocks

    @property
    def host(self) -> NDArray[np.uint8]:
        """See `BlockCopies`."""
        return self._host

    @property
    def memory(self) -> KVMemory | None:
        """See `BlockCopies`."""
        return self._memory

    def to_host(
        self, blocks: Sequence[int], slots: Sequence[int], _groups: Sequence[int]
    ) -> NDArray[np.uint64]:
        """See `BlockCopies`."""
        return copy_blocks([self._host[s] for s in slots], [self._device[b] for b in blocks])

    def to_device(
        self, slots: Sequence[int], blocks: Sequence[int], _groups: Sequence[int]
    ) -> NDArray[np.uint64]:
        """See `BlockCopies`."""
        return copy_blocks([self._device[b] for b in blocks], [self._host[s] for s in slots])

    def close(self) -> None:
        """See `BlockCopies`."""
        del self._device, self._host
        self._memory.close()


class StagedCopies:
    """For an engine whose blocks are on an accelerator: the region is pinned host memory."""

    def __init__(self, staging: KVStaging) -> None:
        self._staging = staging
        self._host = staging.memory.blocks

    @property
    def host(self) -> NDArray[np.uint8]:
        """See `BlockCopies`."""
        return self._host

    @property
    def memory(self) -> KVMemory | None:
        """See `BlockCopies`."""
        return self._staging.memory

    def to_host(
        self, blocks: Sequence[int], slots: Sequence[int], _groups: Sequence[int]
    ) -> NDArray[np.uint64]:
        """See `BlockCopies`."""
        self._staging.to_host(blocks, slots)
        return checksum_blocks([self._host[s] for s in slots])

    def to_device(
        self, slots: Sequence[int], blocks: Sequence[int], _groups: Sequence[int]
    ) -> NDArray[np.uint64]:
        """See `BlockCopies`. The checksums are those of the slots."""
        self._staging.to_device(slots, blocks)
        return checksum_blocks([self._host[s] for s in slots])

    def close(self) -> None:
        """See `BlockCopies`."""
        del self._host
        self._staging.close()
