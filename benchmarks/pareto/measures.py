"""From what was seen of each request to the numbers of a cell."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.pareto.results import Slo


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank; 0 if there is no value."""
    if not values:
        return 0.0
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def mean(values: Sequence[float]) -> float:
    """0 if there is no value."""
    return fmean(values) if values else 0.0


def goodput(
    ttft_ms: Sequence[float], itl_ms: Sequence[float], num_requests: int, slo: Slo
) -> float:
    """Share of all requests whose answers kept both bounds. The lists are of those answered."""
    pairs = zip(ttft_ms, itl_ms, strict=True)
    return sum(t <= slo.ttft_ms and i <= slo.itl_ms for t, i in pairs) / max(1, num_requests)


class Latencies(TypedDict):
    """Those of a `Row`."""

    mean_ttft_ms: float
    p99_ttft_ms: float
    mean_itl_ms: float
    p50_itl_ms: float
    p99_itl_ms: float


def columns(ttft_ms: Sequence[float], gaps_ms: Sequence[float]) -> Latencies:
    """Return the latencies of a `Row`."""
    return {
        "mean_ttft_ms": mean(ttft_ms),
        "p99_ttft_ms": percentile(ttft_ms, 0.99),
        "mean_itl_ms": mean(gaps_ms),
        "p50_itl_ms": percentile(gaps_ms, 0.5),
        "p99_itl_ms": percentile(gaps_ms, 0.99),
    }
