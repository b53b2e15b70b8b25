"""Memory that kernels keep from call to call."""

from __future__ import annotations

import torch

#: Number of multiprocessors that Triton's interpreter stands for.
_INTERPRETED_PROCESSORS = 8


class Workspace:
    """Memory that grows to the largest request. Not for two threads or streams at a time.

    Without it, the allocator may return memory to the system after a call and map it anew, page by
    page, for the next one. A captured graph needs memory that stays in place.
    """

    def __init__(self, *, num_processors: int | None = None) -> None:
        """num_processors: multiprocessors among which work is divided; None: the device's."""
        self._num_processors = num_processors
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._counters = torch.empty(0, dtype=torch.int32)

    def count_processors(self, device: torch.device) -> int:
        """Return the number of multiprocessors among which work is divided."""
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
        """Return a tensor of any content. It shares its memory with all other taken tensors."""
        num_bytes = shape[0] * shape[1] * dtype.itemsize
        if self._memory.numel() < num_bytes or self._memory.device != device:
            with torch.inference_mode(mode=False):  # so that it can be filled in both modes
                self._memory = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        return self._memory[:num_bytes].view(dtype).view(shape)

    def counters(self, size: int, device: torch.device) -> torch.Tensor:
        """Return int32 [size] zeros. A kernel that counts with them must leave zeros."""
        if self._counters.numel() < size or self._counters.device != device:
            with torch.inference_mode(mode=False):
                self._counters = torch.zeros(size, dtype=torch.int32, device=device)
        return self._counters[:size]
