"""When requests are sent: an open loop, drawn before the run so that no draw delays a request."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.load.settings import RampUp

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request's time after the start, and the rate that was meant there."""

    at_s: float
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """A rate that grows over the run, by request count."""

    strategy: RampUp
    start_rps: float
    end_rps: float

    def rate(self, index: int, num_requests: int) -> float:
        """Requests per second around request `index`."""
        progress = index / max(num_requests - 1, 1)
        if self.strategy is RampUp.LINEAR:
            return self.start_rps + (self.end_rps - self.start_rps) * progress
        return float(self.start_rps * (self.end_rps / self.start_rps) ** progress)


def schedule(
    num_requests: int,
    *,
    request_rate: float,
    burstiness: float,
    rng: np.random.Generator,
    ramp: Ramp | None = None,
) -> list[Arrival]:
    """Draw gaps from Gamma(burstiness, 1 / (rate · burstiness)) and add them up.

    Without a ramp the sum is scaled to num_requests / rate, so that two seeds offer the same load.
    The first request, too, comes after a gap.
    """
    rates = [ramp.rate(i, num_requests) if ramp else request_rate for i in range(num_requests)]
    at_s = np.cumsum([_gap_s(rate, burstiness, rng) for rate in rates])
    if ramp is None and at_s[-1] > 0:
        at_s *= num_requests / request_rate / at_s[-1]
    return [Arrival(float(at), rate) for at, rate in zip(at_s, rates, strict=True)]


def _gap_s(rate: float, burstiness: float, rng: np.random.Generator) -> float:
    if math.isinf(rate):
        return 0.0
    if math.isinf(burstiness):
        return 1.0 / rate
    return float(rng.gamma(burstiness, 1.0 / (rate * burstiness)))


def rate_changes(
    arrivals: Sequence[Arrival], ramp: Ramp, started: datetime
) -> list[dict[str, Any]]:
    """When the ramp passed each whole number of requests per second."""
    last = int(ramp.start_rps)
    changes = [{"rps": last, "timestamp": started.isoformat()}]
    for arrival in arrivals:
        timestamp = (started + timedelta(seconds=arrival.at_s)).isoformat()
        changes += [
            {"rps": rps, "timestamp": timestamp} for rps in range(last + 1, int(arrival.rate) + 1)
        ]
        last = max(last, int(arrival.rate))
    return changes
