"""Where a rank of another process has its connectors, and the secret that opens them."""

from __future__ import annotations

from dataclasses import dataclass, field

TIMEOUT_S = 30.0
#: ZeroMQ knows no longer one.
_MOST_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointAddress:
    """A served endpoint, as rank 0 needs to know it."""

    rank: int
    #: tcp://host:port of the control connection.
    address: str
    #: The group's secret: see `TokenKeys`.
    token: bytes = field(repr=False)
    #: An end that is silent for so long is lost.
    timeout_s: float = TIMEOUT_S

    def __str__(self) -> str:
        return f"rank {self.rank} at {self.address}"


def heartbeat_s(timeout_s: float) -> float:
    """Return the time between heartbeats, of which three must be missed."""
    return min(timeout_s, _MOST_S) / 3
