"""Pieces of an answer that came one after the other, as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from baton.v1 import decode_pb2


def merge_into(merged: decode_pb2.DecodeResponse, piece: decode_pb2.DecodeResponse) -> None:
    """Append what came later. Usage and timings count from the beginning: the later ones stay."""
    if piece.HasField("usage"):
        merged.ClearField("usage")
        merged.ClearField("timings")
    merged.MergeFrom(piece)
