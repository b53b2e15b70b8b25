"""A connector's limits of bytes in flight and of waits for peers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferLimits:
    """The limits of one connector, in both directions."""

    #: Bytes that one peer may have in flight to this worker. At least one block.
    window_bytes: int = 64 << 20
    #: Bytes of one piece, unless a single block is larger. A piece costs both event loops 0.3 ms
    #: each, whatever its size, which is a quarter of the time that 4 MiB take by TCP.
    piece_bytes: int = 16 << 20
    #: A sender fails a transfer if its receiver accepts nothing for this time.
    stall_timeout_s: float = 30.0
    #: The side that ends a transfer waits this long for the other side's confirmation that it no
    #: longer accesses the blocks (a receiver reads them, a sender writes them). Then it cuts the
    #: connection.
    release_timeout_s: float = 5.0
    #: If cutting the connection does not stop a sender that writes itself (a device's memory),
    #: blocks are kept for this time after it,
    cut_grace_s: float = 2.5
    #: and a sender that was stopped for this time, which must be less, writes no more.
    max_stall_s: float = 1.0


DEFAULT_LIMITS = TransferLimits()
