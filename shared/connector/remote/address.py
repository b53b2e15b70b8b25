"""Where a rank of another process has its connectors, and the secret that opens them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointAddress:
    """A served endpoint, as rank 0 needs to know it."""

    rank: int
    #: tcp://host:port of the control connection.
    address: str
    #: The group's secret: see `TokenKeys`.
    token: bytes = field(repr=False)

    def __str__(self) -> str:
        return f"rank {self.rank} at {self.address}"
