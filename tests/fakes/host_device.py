"""A `DeviceMemory` over shared memory of the host: the second implementation, for any machine.

It crosses processes as CUDA's does: what is exported names a memory of another process, which is
mapped until it is closed. Reading it after that would end the process.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

import numpy as np

from shared.connector.protocol import block_io
from shared.errors import TransferError, TransferFailure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from shared.kv.layout import KVLayout
    from shared.kv.memory import KVMemory


class MappedHost:
    """Another worker's memory."""

    def __init__(self, path: str, num_blocks: int, owner: HostDevice) -> None:
        block_bytes = owner.layout.block_bytes
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise TransferError(TransferFailure.CORRUPT, f"{path}: {error}") from error
        try:
            if os.fstat(fd).st_size != num_blocks * block_bytes:
                raise TransferError(TransferFailure.LAYOUT_MISMATCH, f"{path}: another size")
            self._map = mmap.mmap(fd, num_blocks * block_bytes, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        self.num_blocks = num_blocks
        self._owner = owner

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        rows = np.frombuffer(self._map, np.uint8).reshape(self.num_blocks, -1)
        block_io.copy_blocks(self._owner.rows(targets), [rows[block] for block in sources])

    def close(self) -> None:
        self._map.close()


class HostDevice:
    """A `KVMemory` that plays a device's. `uuid` is the device's name."""

    def __init__(self, memory: KVMemory, *, uuid: str = "one") -> None:
        self._memory = memory
        self._uuid = uuid

    @property
    def layout(self) -> KVLayout:
        return self._memory.layout

    @property
    def num_blocks(self) -> int:
        return self._memory.num_blocks

    @property
    def num_bytes(self) -> int:
        return self._memory.num_bytes

    def facts(self) -> Mapping[str, str]:
        return {"driver": "host", "uuid": self._uuid}

    def reaches(self, facts: Mapping[str, str]) -> bool:
        return facts == self.facts()

    def export(self) -> bytes:
        return f"/proc/{os.getpid()}/fd/{self._memory.fd}".encode()

    def open(self, exported: bytes, num_blocks: int) -> MappedHost:
        return MappedHost(exported.decode(), num_blocks, self)

    def checksums(self, blocks: Sequence[int]) -> NDArray[np.uint64]:
        return block_io.checksum_blocks(self.rows(blocks))

    def rows(self, blocks: Sequence[int]) -> list[NDArray[np.uint8]]:
        rows = self._memory.blocks
        return [rows[block] for block in blocks]
