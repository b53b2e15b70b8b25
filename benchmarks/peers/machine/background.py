"""How much of the machine other processes used during a measurement."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

import psutil

if TYPE_CHECKING:
    from collections.abc import Sequence


class UsesCpu(Protocol):
    """Something whose processor time is its own business."""

    def cpu_s(self) -> float:
        """Processor time so far."""


class Background:
    """Started at construction. `cores` is what was busy and belonged to none of `own`."""

    def __init__(self, own: Sequence[UsesCpu]) -> None:
        self._own = own
        self._start_s = time.monotonic()
        self._start_other_s = self._other_s()

    def cores(self) -> float:
        """Cores that others kept busy on average since the construction, stolen time included."""
        elapsed_s = time.monotonic() - self._start_s
        other_s = self._other_s() - self._start_other_s
        return max(0.0, other_s / elapsed_s) if elapsed_s > 0 else 0.0

    def _other_s(self) -> float:
        return machine_busy_s() - sum(system.cpu_s() for system in self._own)


class ThisProcess:
    """The measuring process itself."""

    def cpu_s(self) -> float:
        """Processor time so far."""
        return time.process_time()


def machine_busy_s() -> float:
    """Time that all cores together were not idle since boot."""
    times = psutil.cpu_times()
    parts = (times.user, times.nice, times.system, times.irq, times.softirq, times.steal)
    # Linux counts guests as user time too, so they are in.
    return float(sum(parts))
