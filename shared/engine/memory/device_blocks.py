"""The blocks of a KV cache for connectors that transfer them from the device, without staging.

This has never run with CUDA: there was no device. On a device of type cpu the same is done without
streams: that is how tests run it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shared.kv.layout import KVLayout


class DeviceBlocks:
    """A `DeviceMemory` of one KV cache."""

    def __init__(self, kv_cache: torch.Tensor, layout: KVLayout) -> None:
        """Use `kv_cache`: [blocks, …], contiguous, a block of `layout.block_bytes`."""
        self.layout = layout
        self.num_blocks = len(kv_cache)
        self.num_bytes = self.num_blocks * layout.block_bytes
        self._rows = kv_cache.view(torch.uint8).view(self.num_blocks, layout.block_bytes)
        # Copies need not wait for running computations.
        self._stream = torch.cuda.Stream(kv_cache.device) if self._rows.is_cuda else None

    @property
    def address(self) -> int:
        """See `DeviceMemory.address`."""
        return self._rows.data_ptr()

    @property
    def device_id(self) -> int | None:
        """See `DeviceMemory.device_id`."""
        return self._rows.get_device() if self._rows.is_cuda else None

    def use_here(self) -> None:
        """See `DeviceMemory.use_here`."""
        if self._rows.is_cuda:
            torch.cuda.set_device(self._rows.device)

    @torch.inference_mode()
    def read(self, blocks: Sequence[int]) -> NDArray[np.uint8]:
        """See `DeviceMemory.read`."""
        with torch.cuda.stream(self._stream):
            gathered = self._rows[torch.tensor(blocks).to(self._rows.device)]
            host = torch.empty(
                gathered.shape, dtype=torch.uint8, pin_memory=self._stream is not None
            )
            # Returns after the bytes have arrived.
            return host.copy_(gathered).numpy()
