"""State and counters of the tiers, for metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TierCounters:
    """Counted since start, in the engine's thread. Blocks, unless the name says otherwise."""

    #: Blocks used by sequences and peers.
    hits: int = 0
    loads: int = 0
    stores: int = 0
    evictions: int = 0
    #: Blocks that should have been stored here and were not: no room, or a slow or failing disk.
    dropped_stores: int = 0
    failed_stores: int = 0
    failed_loads: int = 0
    #: Failed loads whose bytes differed from those stored.
    corrupt_blocks: int = 0
    #: Bytes that packing has saved when blocks were stored.
    saved_bytes: int = 0
    load_seconds: float = 0.0
    store_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStats:
    """One tier's state."""

    num_blocks: int
    num_bytes: int
    capacity_bytes: int
    #: Whether blocks are stored and loaded at present.
    is_available: bool
    counters: dict[str, float]
