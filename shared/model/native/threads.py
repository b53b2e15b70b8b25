"""How many threads compute, and where."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class ThreadPlan:
    """Threads of the native kernels; the thread that calls them is the first of them."""

    num_threads: int
    #: The core of each thread; empty: the system decides.
    cpus: tuple[int, ...] = ()


def plan_threads(num_threads: int | None = None) -> ThreadPlan:
    """`num_threads`, by default one per core that this process may use.

    PyTorch is left with the calling thread: its own pool would spin on the same cores between the
    steps, and what it still computes is too small to share.
    """
    torch.set_num_threads(1)
    return ThreadPlan(num_threads or len(os.sched_getaffinity(0)))
