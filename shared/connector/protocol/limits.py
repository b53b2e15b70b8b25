"""How much a connector lets flow at once, and how long it waits for a peer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferLimits:
    """The limits of one connector, in both directions."""

    #: Bytes that one peer may have under way to this worker. At least one block.
    window_bytes: int = 64 << 20
    #: Bytes of one piece, unless a single block is larger. A piece costs both event loops 0.3 ms
    #: each, whatever its size, which is a quarter of the time that 4 MiB take by TCP.
    piece_bytes: int = 16 << 20
    #: A sender gives up on a receiver that takes nothing for so long.
    stall_timeout_s: float = 30.0
    #: The side that ends a transfer waits so long for the other side to confirm that it no longer
    #: touches the blocks (a receiver reads them, a sender writes them). Then it cuts the
    #: connection.
    release_timeout_s: float = 5.0
    #: Where cutting the connection does not stop a sender that writes itself (a device's memory),
    #: blocks are kept for so long after it,
    cut_grace_s: float = 2.5
    #: and a sender that has stood still for so long, which must be less, writes no more.
    max_stall_s: float = 1.0


DEFAULT_LIMITS = TransferLimits()
