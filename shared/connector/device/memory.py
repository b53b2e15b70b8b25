"""What the `cuda_ipc` connector needs of a device: all of its driver is behind these two.

The connector is written against this, knows no tensors, and is tested over a memory of the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shared.kv.layout import KVLayout


class MappedMemory(Protocol):
    """Another process's memory, mapped into this one."""

    @property
    def num_blocks(self) -> int:
        """Blocks in all."""
        ...

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy its blocks `sources` to `targets` of the memory that opened it.

        Returns when they are there, for every stream and every process.
        """
        ...

    def close(self) -> None:
        """Unmap. Nothing copies from it, or will."""
        ...


class DeviceMemory(Protocol):
    """A worker's KV blocks on a device. Calls come from several threads at a time.

    A block that is copied or hashed is final: whoever pushes it has waited for the step that wrote
    it. So no event has to cross the processes.
    """

    @property
    def layout(self) -> KVLayout:
        """Of each block."""
        ...

    @property
    def num_blocks(self) -> int:
        """Blocks in all."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes in all."""
        ...

    def facts(self) -> Mapping[str, str]:
        """What a peer on this host has to know to tell whether it reaches this device."""
        ...

    def reaches(self, facts: Mapping[str, str]) -> bool:
        """Whether a peer of this host with these facts can open this memory."""
        ...

    def export(self) -> bytes:
        """How another process opens this memory; at most a few hundred bytes."""
        ...

    def open(self, exported: bytes, num_blocks: int) -> MappedMemory:
        """Map a peer's memory, of `num_blocks` blocks of this layout.

        Raises:
            TransferError: it cannot be, or has another size.
        """
        ...

    def checksums(self, blocks: Sequence[int]) -> NDArray[np.uint64]:
        """A checksum of each block, computed where it lies; the same at both ends."""
        ...
