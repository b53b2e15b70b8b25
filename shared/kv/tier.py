"""The tiers of blocks. Nearer tiers come first."""

from __future__ import annotations

from enum import StrEnum


class BlockTier(StrEnum):
    """A worker may have the same block in several tiers at once."""

    #: The engine's own pool: GPU memory, or the CPU pool that a CPU engine computes in.
    DEVICE = "device"
    #: Host memory beside the pool.
    HOST = "host"
    #: Files of this host.
    DISK = "disk"
