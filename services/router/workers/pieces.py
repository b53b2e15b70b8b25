"""Consecutive pieces of an answer, merged into one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton.v1 import decode_pb2


#: Of one piece, which becomes a message to a gRPC client: those have 16 MiB at most.
MAX_HIDDEN_BYTES = 2**20


def merge_into(merged: decode_pb2.DecodeResponse, piece: decode_pb2.DecodeResponse) -> None:
    """Append a later piece. Usage and timings are cumulative: the later ones are kept."""
    if piece.HasField("usage"):
        merged.ClearField("usage")
        merged.ClearField("timings")
    merged.MergeFrom(piece)


def is_full(rows: Sequence[bytes]) -> bool:
    """Return whether a piece with these hidden states is full: later ones need another piece."""
    return bool(rows) and sum(map(len, rows)) >= MAX_HIDDEN_BYTES
