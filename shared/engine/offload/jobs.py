"""The jobs of the tiers' threads, with their results.

A job belongs to the engine's thread before it is submitted and after it is returned; in between to
the tiers' threads.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from shared.engine.offload.landings import SlotLanding
    from shared.kv.tier import BlockTier

    Slots = tuple[tuple[bytes, int], ...]


@dataclass(slots=True, eq=False, kw_only=True)
class StoreJob:
    """Copy blocks of the engine to slots of the host tier."""

    keys: tuple[bytes, ...]
    blocks: tuple[int, ...]
    slots: tuple[int, ...]
    #: Evicted blocks whose slots this job reuses: they are written to disk first.
    spills: Slots = ()
    error: Exception | None = None
    seconds: float = 0.0


@dataclass(slots=True, eq=False, kw_only=True)
class LoadJob:
    """Copy the next blocks of a prefix to blocks of the engine, each from its tier.

    Blocks on disk go through slots of the host tier.
    """

    keys: tuple[bytes, ...]
    tiers: tuple[BlockTier, ...]
    slots: tuple[int, ...]
    blocks: tuple[int, ...]
    #: Called with the number of leading blocks that arrived, in the engine's thread.
    done: Callable[[int], None]
    spills: Slots = ()
    was_read: bool = False
    #: For blocks on disk: the present content of the block's slot.
    read: set[bytes] = field(default_factory=set)
    #: The first block that did not arrive, and the reason.
    num_loaded: int = 0
    error: Exception | None = None
    queued_s: float = field(default_factory=time.monotonic)
    #: Seconds in the queue and in work, for each step.
    seconds: dict[BlockTier, float] = field(default_factory=dict)
    finished_s: float = 0.0

    def keys_in(self, tier: BlockTier) -> tuple[bytes, ...]:
        """Return the keys of the blocks that come from `tier`."""
        return tuple(key for key, there in zip(self.keys, self.tiers, strict=True) if there is tier)


@dataclass(slots=True, eq=False, kw_only=True)
class WriteJob:
    """Write a block to disk."""

    key: bytes
    data: NDArray[np.uint8]
    checksum: int
    #: Unix seconds; None: now.
    used_at_s: float | None = None
    #: Bytes that packing has saved.
    saved_bytes: int = 0
    error: Exception | None = None
    seconds: float = 0.0


@dataclass(slots=True, eq=False, kw_only=True)
class RemoveJob:
    """Delete blocks from disk."""

    keys: tuple[bytes, ...]


@dataclass(slots=True, eq=False, kw_only=True)
class LandJob:
    """Write what was in the slots of a landing to disk, or seal what has arrived in them."""

    landing: SlotLanding
    #: Slots whose checksums are to be computed.
    slots: tuple[int, ...] = ()
    spills: Slots = ()
    #: It uses none of the pool.
    blocks: tuple[int, ...] = ()
    error: Exception | None = None


#: Jobs of the copying thread.
CopyJob = StoreJob | LoadJob | LandJob
Job = CopyJob | WriteJob | RemoveJob
