"""Consecutive pieces of an answer, merged into one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.v1 import common_pb2, decode_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Of one piece, which becomes a message to a gRPC client: those have 16 MiB at most.
MAX_HIDDEN_BYTES = 2**20


class PlainPiece:
    """A piece that has tokens and nothing else. It is cheaper to read than a message."""

    __slots__ = ("token_ids",)

    finish_reason = common_pb2.FINISH_REASON_UNSPECIFIED
    hidden_states: Sequence[bytes] = ()

    def __init__(self, token_ids: list[int]) -> None:
        """Make a piece that owns the list; `merged` adds to it."""
        self.token_ids = token_ids


#: What a worker says of one answer at a time.
Piece = decode_pb2.DecodeResponse | PlainPiece


def merged(first: Piece, second: Piece) -> Piece:
    """Return both as one. `second` follows `first`, which may be changed and returned."""
    if isinstance(second, PlainPiece):
        first.token_ids.extend(second.token_ids)
        return first
    if isinstance(first, PlainPiece):
        first = decode_pb2.DecodeResponse(token_ids=first.token_ids)
    merge_into(first, second)
    return first


def merge_into(merged: decode_pb2.DecodeResponse, piece: decode_pb2.DecodeResponse) -> None:
    """Append a later piece. Usage and timings are cumulative: the later ones are kept."""
    if piece.HasField("usage"):
        merged.ClearField("usage")
        merged.ClearField("timings")
    merged.MergeFrom(piece)


def is_full(rows: Sequence[bytes]) -> bool:
    """Return whether a piece with these hidden states is full: later ones need another piece."""
    return bool(rows) and sum(map(len, rows)) >= MAX_HIDDEN_BYTES
