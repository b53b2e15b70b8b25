"""How fast a group's operations are, as its ranks see it: of benchmarks, and of `baton doctor`."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.ranks.base import Collective

#: What a token's sum has in a small model; what the sums of a prompt have.
SIZES = (4 << 10, 4 << 20)
#: Of all rounds of one size together.
_TOTAL_BYTES = 64 << 20
_MIN_ROUNDS = 16
_MAX_ROUNDS = 500


@dataclass(frozen=True)
class SumTime:
    """How long sums of one size take."""

    num_bytes: int
    #: The median.
    seconds: float

    @property
    def bytes_per_s(self) -> float:
        """The size by the time."""
        return self.num_bytes / self.seconds


def measure_sums(
    group: Collective, sizes: Iterable[int] = SIZES, dtype: torch.dtype = torch.float32
) -> list[SumTime]:
    """Time all_reduce by size [bytes]. Every rank of the group calls this with the same arguments.

    Some seconds at most for sums of up to 16 MiB on one host. Each round begins with a barrier, so
    no rank's lateness counts.

    Raises:
        RankError: as the operations do.
    """
    return [SumTime(size, _median_s(group, size, dtype)) for size in sizes]


def _median_s(group: Collective, num_bytes: int, dtype: torch.dtype) -> float:
    tensor = torch.zeros(num_bytes // dtype.itemsize, dtype=dtype)
    num_rounds = max(_MIN_ROUNDS, min(_MAX_ROUNDS, _TOTAL_BYTES // num_bytes))
    times_s = []
    for _ in range(num_rounds):
        group.barrier()
        before_s = time.perf_counter()
        group.all_reduce(tensor)
        times_s.append(time.perf_counter() - before_s)
    # The first rounds find pages that are not there yet.
    return statistics.median(times_s[len(times_s) // 8 :])
