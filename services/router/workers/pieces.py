"""Consecutive pieces of an answer, merged into one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from baton.v1 import decode_pb2


def merge_into(merged: decode_pb2.DecodeResponse, piece: decode_pb2.DecodeResponse) -> None:
    """Append a later piece. Usage and timings are cumulative: the later ones are kept."""
    if piece.HasField("usage"):
        merged.ClearField("usage")
        merged.ClearField("timings")
    merged.MergeFrom(piece)
