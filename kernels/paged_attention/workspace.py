"""Memory for gathered keys and values that is kept from call to call."""

from __future__ import annotations

import torch


class Workspace:
    """Grows to what was asked for and stays. Not for two threads at a time.

    The allocator may give memory of that size back after every call, and then it is mapped anew,
    page by page, for the next.
    """

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def take(
        self, shape: tuple[int, int], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """A tensor of any content; the one before it is overwritten when this one is filled."""
        num_bytes = shape[0] * shape[1] * dtype.itemsize
        if self._memory.numel() < num_bytes or self._memory.device != device:
            with torch.inference_mode(mode=False):  # so that it can be filled in both modes
                self._memory = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        return self._memory[:num_bytes].view(dtype).view(shape)
