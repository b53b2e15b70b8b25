"""What was measured, as it is kept in a file."""

from __future__ import annotations

from typing import Any

import msgspec


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """State of the cluster at one moment."""

    at_s: float
    rss_mib: dict[str, float]
    #: Processor time since the phase began.
    cpu_s: dict[str, float]
    num_running: int
    num_waiting: int
    ttft_margin: float


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request on the client's clock."""

    tenant: str = ""
    start_s: float
    #: 0 if no token came.
    ttft_ms: float = 0.0
    latency_ms: float
    num_tokens: int = 0
    #: HTTP status; 0 if there was none.
    status: int
    error: str = ""
    #: Sent later than planned, because the generator was busy.
    lag_ms: float = 0.0

    @property
    def accepted(self) -> bool:
        """Whether it was answered, in whatever time."""
        return not self.error

    @property
    def refused(self) -> bool:
        """Whether it was told to come back later."""
        return self.status in (429, 503)


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one load."""

    name: str
    #: Times the capacity that was found.
    load: float
    requests_per_s: float
    duration_s: float
    requests: list[Request]
    samples: list[Sample]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a whole run."""

    revision: str
    machine: dict[str, Any]
    max_ttft_ms: float
    capacity_rps: float
    weights: dict[str, float]
    phases: list[Phase]
    num_leaked_blocks: int


class BombPart(msgspec.Struct, frozen=True, kw_only=True):
    """What the other tenant saw for some time, by what it asked for."""

    bombs: bool
    ttft_ms: dict[str, list[float]]
    itl_ms: dict[str, list[float]]
    errors: list[str]


class BombResult(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's huge schemas beside another tenant."""

    parts: list[BombPart]
    #: How often the tenant with the schemas got which answer.
    statuses: dict[str, int]
    num_bombers: int
    num_properties: int
    output_len: int
    revision: str = ""
