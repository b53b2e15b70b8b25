"""How fast memory is read around a visit: on a shared host it changes by the minute."""

from __future__ import annotations

import torch

from benchmarks.peers.workers.limits import NUM_BYTES, shortest_s


class ReadRate:
    """Reads the same 512 MiB each time, which this process owns from its construction."""

    def __init__(self, num_threads: int) -> None:
        torch.set_num_threads(num_threads)
        self._data = torch.ones(NUM_BYTES // 4, dtype=torch.float32)

    def gb_s(self) -> float:
        """GB/s of summing all of it, the best of several tries. Takes 0.2 to 1 s."""
        return NUM_BYTES / shortest_s(lambda: self._data.sum()) / 1e9
