"""A `DeviceMemory` of CUDA: the KV cache of this process, and those of others on this host.

It has never run on a device: there was none. `tests/gpu/test_cuda_ipc.py` is the first thing to run
where there is one. On a device of type cpu there are no streams, and the driver is a test's.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from kernels.block_copy import copy_blocks
from shared.engine.memory.cuda_ipc import HANDLE_BYTES, CudaIpcError
from shared.errors import ConfigError, TransferError, TransferFailure

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shared.engine.memory.cuda_ipc import IpcDriver
    from shared.kv.layout import KVLayout

#: The handle of the allocation, and where in it the cache begins.
_EXPORT = struct.Struct(f"<{HANDLE_BYTES}sQ")
#: Raised when `checksums` computes something else.
_CHECKSUM_VERSION = 1
_SEED = 0x6B76
#: A copy takes few multiprocessors; the others are for computing.
_MAX_PROGRAMS = 32


class PeerCache:
    """Another process's cache in this one's address space."""

    def __init__(self, owner: CudaBlocks, base: int, blocks: torch.Tensor) -> None:
        """blocks: uint8, of the shape of a cache, somewhere in the allocation at `base`."""
        self._owner = owner
        self._base = base
        self._blocks = blocks
        self._num_blocks = len(blocks)

    @property
    def num_blocks(self) -> int:
        """See `MappedMemory.num_blocks`."""
        return self._num_blocks

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """See `MappedMemory.copy`."""
        self._owner.copy_from(self._blocks, sources, targets)

    def close(self) -> None:
        """See `MappedMemory.close`."""
        self._blocks = torch.empty(0)
        self._owner.unmap(self._base)


class CudaBlocks:
    """The blocks of one KV cache. Copies and checksums run in a stream of their own, one by one."""

    def __init__(self, kv_cache: torch.Tensor, layout: KVLayout, driver: IpcDriver) -> None:
        """kv_cache: [blocks, layers, 2, kv heads, block size, row elements], contiguous.

        Raises ConfigError if its memory cannot be shared.
        """
        if layout.block_bytes % 8:
            raise ConfigError(f"cuda_ipc sums words of 8 bytes: {layout.block_bytes} are no such")
        self.layout = layout
        self.num_blocks = len(kv_cache)
        self.num_bytes = self.num_blocks * layout.block_bytes
        self._driver = driver
        self._device = kv_cache.device
        self._blocks = kv_cache.view(torch.uint8)
        self._words = self._blocks.flatten(1).view(torch.int64)
        self._weights = _odd_weights(self._words.shape[1]).to(self._device)
        self._lock = threading.Lock()
        is_cuda = self._device.type == "cuda"
        self._stream = torch.cuda.Stream(self._device) if is_cuda else None
        self._implementation = "triton" if is_cuda else "torch"
        if is_cuda:
            torch.cuda.synchronize(self._device)  # the weights are there for every stream
        self._export = self._make_export()

    def facts(self) -> Mapping[str, str]:
        """See `DeviceMemory.facts`."""
        kind = self._device.type
        return {"driver": kind, "uuid": _uuid(self._device), "checksum": str(_CHECKSUM_VERSION)}

    def reaches(self, facts: Mapping[str, str]) -> bool:
        """See `DeviceMemory.reaches`. A device that this process does not see is out of reach."""
        own = self.facts()
        if any(facts.get(name) != own[name] for name in ("driver", "checksum")):
            return False
        if facts.get("uuid") == own["uuid"]:
            return True
        return any(
            _uuid(torch.device("cuda", other)) == facts.get("uuid")
            and torch.cuda.can_device_access_peer(other, self._device)
            for other in range(torch.cuda.device_count())
        )

    def export(self) -> bytes:
        """See `DeviceMemory.export`."""
        return self._export

    def open(self, exported: bytes, num_blocks: int) -> PeerCache:
        """See `DeviceMemory.open`."""
        if len(exported) != _EXPORT.size:
            raise TransferError(TransferFailure.CORRUPT, f"a door of {len(exported)} bytes")
        handle, offset = _EXPORT.unpack(exported)
        with _current(self._device):
            try:
                base = self._driver.open(handle)
            except CudaIpcError as error:
                raise TransferError(TransferFailure.CORRUPT, str(error)) from error
            try:
                start, size = self._driver.allocation(base)
                if base + offset + num_blocks * self.layout.block_bytes > start + size:
                    raise TransferError(
                        TransferFailure.LAYOUT_MISMATCH, f"{num_blocks} blocks in {size} bytes"
                    )
                shape = (num_blocks, *self._blocks.shape[1:])
                return PeerCache(self, base, self._bytes_at(base + offset, shape))
            except BaseException:
                self._driver.close(base)
                raise

    @torch.inference_mode()
    def copy_from(self, peer: torch.Tensor, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy blocks of `peer`, which has the shape of this cache, to `targets`."""
        with self._working():
            if peer.device == self._device:
                copy_blocks(
                    peer,
                    self._blocks,
                    source_blocks=self._ids(sources),
                    target_blocks=self._ids(targets),
                    max_programs=_MAX_PROGRAMS,
                    implementation=self._implementation,
                )
            else:
                # Over NVLink or PCIe: the copy engines do that, and leave the processors alone.
                for source, target in zip(sources, targets, strict=True):
                    self._blocks[target].copy_(peer[source], non_blocking=True)

    @torch.inference_mode()
    def checksums(self, blocks: Sequence[int]) -> NDArray[np.uint64]:
        """See `DeviceMemory.checksums`: the sum of a block's words, each times its odd weight.

        Modulo 2**64, so that the order of the additions does not matter. A single changed word
        changes it for certain, since an odd factor can be undone.
        """
        with self._working():
            weighted = self._words[self._ids(blocks)].mul_(self._weights)
            sums: NDArray[np.uint64] = weighted.sum(dim=1).cpu().numpy().view("u8")
            return sums

    def unmap(self, base: int) -> None:
        """Undo an `open`."""
        with _current(self._device):
            self._driver.close(base)

    def _make_export(self) -> bytes:
        pointer = self._blocks.data_ptr()
        with _current(self._device):
            try:
                base, _ = self._driver.allocation(pointer)
                return _EXPORT.pack(self._driver.export(pointer), pointer - base)
            except CudaIpcError as error:
                raise ConfigError(
                    f"connector cuda_ipc cannot share the KV cache: {error} "
                    "(with expandable_segments in PYTORCH_CUDA_ALLOC_CONF nothing can be shared)"
                ) from error

    @contextmanager
    def _working(self) -> Iterator[None]:
        """One at a time, in the stream of this object; at the end everything is done."""
        with self._lock, _current(self._device):
            if self._stream is None:
                yield
                return
            with torch.cuda.stream(self._stream):
                yield
            self._stream.synchronize()

    def _bytes_at(self, pointer: int, shape: tuple[int, ...]) -> torch.Tensor:
        if self._device.type == "cuda":
            # Without a device, the tensor is on the one where the memory is.
            return torch.as_tensor(_ArrayInterface(pointer, shape))
        num_bytes = shape[0] * self.layout.block_bytes
        array = (ctypes.c_ubyte * num_bytes).from_address(pointer)
        return torch.frombuffer(array, dtype=torch.uint8).view(shape)

    def _ids(self, blocks: Sequence[int]) -> torch.Tensor:
        return torch.tensor(blocks, dtype=torch.int64).to(self._device, non_blocking=True)


class _ArrayInterface:
    """Memory that PyTorch shall look at without owning it."""

    def __init__(self, pointer: int, shape: tuple[int, ...]) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 3,
        }


@contextmanager
def _current(device: torch.device) -> Iterator[None]:
    """The driver's calls are about the calling thread's device."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        yield


def _uuid(device: torch.device) -> str:
    return "" if device.type != "cuda" else str(torch.cuda.get_device_properties(device).uuid)


def _odd_weights(num_words: int) -> torch.Tensor:
    """int64 [num_words], the same in every process."""
    generator = torch.Generator().manual_seed(_SEED)
    low, high = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
    return torch.randint(low, high, (num_words,), generator=generator) | 1
