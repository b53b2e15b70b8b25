"""What the tiers hold and have done, for metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TierCounters:
    """Counted since start, in the engine's thread. Blocks, unless the name says otherwise."""

    #: Blocks that sequences and peers used.
    hits: int = 0
    loads: int = 0
    stores: int = 0
    evictions: int = 0
    #: Should have arrived here, and did not: no room, or the disk was too slow or is away.
    dropped_stores: int = 0
    failed_stores: int = 0
    failed_loads: int = 0
    #: Of the failed loads: bytes that were not those that had been stored.
    corrupt_blocks: int = 0
    load_seconds: float = 0.0
    store_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStats:
    """One tier's state."""

    num_blocks: int
    num_bytes: int
    capacity_bytes: int
    #: Whether blocks are stored and loaded at the moment.
    is_available: bool
    counters: dict[str, float]
