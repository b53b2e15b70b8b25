"""Memory of the attention kernels that is kept from call to call."""

from __future__ import annotations

import torch

#: Where there are no multiprocessors to count: in Triton's interpreter.
_INTERPRETED_PROCESSORS = 8


class Workspace:
    """Grows to what was asked for and stays. Not for two threads or streams at a time.

    The allocator may give memory of that size back after every call, and then it is mapped anew,
    page by page, for the next; a captured graph goes on using what it was captured with.
    """

    def __init__(self, *, num_processors: int | None = None) -> None:
        """num_processors: multiprocessors to divide decode attention among; None: the device's."""
        self._num_processors = num_processors
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._counters = torch.empty(0, dtype=torch.int32)

    def count_processors(self, device: torch.device) -> int:
        """Multiprocessors of the device."""
        if self._num_processors is None:
            self._num_processors = (
                torch.cuda.get_device_properties(device).multi_processor_count
                if device.type == "cuda"
                else _INTERPRETED_PROCESSORS
            )
        return self._num_processors

    def take(
        self, shape: tuple[int, int], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """A tensor of any content; the one before it is overwritten when this one is filled."""
        num_bytes = shape[0] * shape[1] * dtype.itemsize
        if self._memory.numel() < num_bytes or self._memory.device != device:
            with torch.inference_mode(mode=False):  # so that it can be filled in both modes
                self._memory = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        return self._memory[:num_bytes].view(dtype).view(shape)

    def counters(self, size: int, device: torch.device) -> torch.Tensor:
        """int32 [size] zeros; who counts in them leaves zeros."""
        if self._counters.numel() < size or self._counters.device != device:
            with torch.inference_mode(mode=False):
                self._counters = torch.zeros(size, dtype=torch.int32, device=device)
        return self._counters[:size]
