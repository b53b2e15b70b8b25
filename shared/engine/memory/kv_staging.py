"""Copies of KV blocks between a device and host memory that peers can map, during computation.

On a device of type cpu the same copies are made without a stream: that is how tests run it.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING

import structlog
import torch

from kernels.block_copy import gather_blocks, scatter_blocks
from shared.errors import ConfigError
from shared.kv.memory import KVMemory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from shared.kv.layout import KVLayout

log = structlog.get_logger(__name__)

#: Size of the buffer on the device: enough for the full speed of the bus, and small beside the KV
#: cache.
_BOUNCE_BYTES = 64 << 20
#: Few programs fill a bus; the others are for computing.
_MAX_PROGRAMS = 32


class KVStaging:
    """A `BlockMover` for one KV cache, and the host memory of its pool.

    Copies run in a stream of their own, in the order of the calls, one at a time. Call `close` when
    no connector uses the memory any more, and before the cache is freed.
    """

    def __init__(self, kv_cache: torch.Tensor, layout: KVLayout, num_host_blocks: int) -> None:
        """Allocate. kv_cache: [blocks, *block_shape] of a group that fills its blocks, contiguous.

        Raises:
            ConfigError: the memory cannot be allocated or pinned.
        """
        self.memory = KVMemory(layout, num_host_blocks)
        if kv_cache.itemsize == 1:  # not every kernel supports every 8-bit type; all support bytes
            kv_cache = kv_cache.view(torch.uint8)
        self._cache = kv_cache
        self._implementation = "triton" if kv_cache.device.type == "cuda" else "torch"
        flat = torch.frombuffer(self.memory.buffer, dtype=torch.uint8).view(kv_cache.dtype)
        self._host = flat.view(num_host_blocks, *kv_cache.shape[1:])
        num_bounce = max(1, min(num_host_blocks, _BOUNCE_BYTES // layout.block_bytes))
        self._bounce = torch.empty(
            (num_bounce, *kv_cache.shape[1:]), dtype=kv_cache.dtype, device=kv_cache.device
        )
        self._lock = threading.Lock()
        self._stream: torch.cuda.Stream | None = None
        if kv_cache.device.type == "cuda":
            self._pin()
            self._stream = torch.cuda.Stream(kv_cache.device)

    @property
    def num_blocks(self) -> int:
        """See `BlockMover.num_blocks`."""
        return len(self._cache)

    @torch.inference_mode()
    def to_host(self, blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        """See `BlockMover.to_host`."""
        with self._lock, self._on_stream():
            for here in self._pieces(len(blocks)):
                bounce = self._bounce[: here.stop - here.start]
                gather_blocks(
                    self._cache,
                    self._ids(blocks[here]),
                    bounce,
                    max_programs=_MAX_PROGRAMS,
                    implementation=self._implementation,
                )
                for first, place, num in _runs(host_blocks[here]):
                    self._host[first : first + num].copy_(
                        bounce[place : place + num], non_blocking=True
                    )
            self._finish()

    @torch.inference_mode()
    def to_device(self, host_blocks: Sequence[int], blocks: Sequence[int]) -> None:
        """See `BlockMover.to_device`."""
        with self._lock, self._on_stream():
            for here in self._pieces(len(blocks)):
                bounce = self._bounce[: here.stop - here.start]
                for first, place, num in _runs(host_blocks[here]):
                    bounce[place : place + num].copy_(
                        self._host[first : first + num], non_blocking=True
                    )
                scatter_blocks(
                    bounce,
                    self._cache,
                    self._ids(blocks[here]),
                    max_programs=_MAX_PROGRAMS,
                    implementation=self._implementation,
                )
            self._finish()

    def close(self) -> None:
        """Free the memory."""
        with self._lock:
            if self._stream is not None:
                self._stream.synchronize()
                torch.cuda.cudart().cudaHostUnregister(self._host.data_ptr())
            self._host = self._bounce = self._cache = torch.empty(0)
            self.memory.close()

    def _ids(self, blocks: Sequence[int]) -> torch.Tensor:
        return torch.tensor(blocks, dtype=torch.int64).to(self._cache.device, non_blocking=True)

    def _pieces(self, num_blocks: int) -> Iterator[slice]:
        for start in range(0, num_blocks, len(self._bounce)):
            yield slice(start, min(start + len(self._bounce), num_blocks))

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _finish(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()

    def _pin(self) -> None:
        """Let the device read and write the memory on its own."""
        error = torch.cuda.cudart().cudaHostRegister(
            self._host.data_ptr(), self.memory.num_bytes, 0
        )
        if int(error) != 0:
            raise ConfigError(f"cannot pin {self.memory.num_bytes} bytes for transfers: {error}")
        log.info("staging_pinned", num_bytes=self.memory.num_bytes)


def _runs(blocks: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield runs of neighbours in memory: first block, index in `blocks`, number."""
    start = 0
    for place in range(1, len(blocks) + 1):
        if place == len(blocks) or blocks[place] != blocks[place - 1] + 1:
            yield blocks[start], start, place - start
            start = place
