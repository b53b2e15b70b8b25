"""Findings about the ranks of a worker on this machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cli.doctor.finding import fail, ok, warn
from shared.errors import BatonError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli.doctor.finding import Finding

#: A step of a small model has dozens of sums, and such a model's step takes some milliseconds.
_SLOW_US = 100


def check_ranks(size: int) -> Iterator[Finding]:
    """Start so many ranks, and time their sums; they have ended afterwards."""
    if size == 1:
        yield ok("ranks", "not asked for: --tensor-parallel-size 2")
        return
    # Ranks import PyTorch, which takes seconds.
    from shared.engine.rank_settings import RankSettings
    from shared.engine.ranks.leader import RankLeader

    num_cores = len(os.sched_getaffinity(0))
    if num_cores < size:
        text = f"{size} ranks on {num_cores} cores"
        yield warn("ranks", text, "take a rank per core at most: others wait while one computes")
    try:
        leader = RankLeader(RankSettings(tensor_parallel_size=size))
        try:
            small, large = leader.measure_sums()
        finally:
            leader.close()
    except BatonError as error:
        yield fail("ranks", str(error), "see the lines of that rank above")
        return
    text = (
        f"{size} reach each other: a sum of {small.num_bytes >> 10} KiB takes "
        f"{small.seconds * 1e6:.0f} us, of {large.num_bytes >> 20} MiB "
        f"{large.bytes_per_s / 1e9:.1f} GB/s"
    )
    if small.seconds * 1e6 > _SLOW_US:
        yield warn("ranks", text, "other work is on these cores, or they are on different sockets")
    else:
        yield ok("ranks", text)
