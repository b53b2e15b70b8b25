"""The numbers of a run of simulated mixed workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(slots=True)
class Outcome:
    """What one run gave. Milliseconds."""

    ttft_ms: list[float] = field(default_factory=list)
    gaps_ms: list[float] = field(default_factory=list)
    #: Mean time between tokens of each answer of more than one.
    itl_ms: list[float] = field(default_factory=list)
    num_handed_over: int = 0
    num_here: int = 0
    num_split: int = 0
    end_ms: float = 0.0

    def goodput(self, ttft_ms: float, itl_ms: float) -> float:
        """Share of answers within both bounds."""
        pairs = zip(self.ttft_ms, self.itl_ms, strict=True)
        return sum(t <= ttft_ms and i <= itl_ms for t, i in pairs) / len(self.ttft_ms)


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
