"""The bodies of the two frames that open a connection: both identities, and the window."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from shared.connector.protocol.frame import Coding, Frame, Kind
from shared.errors import TransferError, TransferFailure
from shared.identity import WorkerId

_MAX_NAME_BYTES = 255
_GRANT = struct.Struct("<Q")


def hello(
    *, sender: WorkerId, receiver: WorkerId, layout: int, num_blocks: int, num_bytes: int
) -> Frame:
    """Return the sender's first frame. The sizes are those of its whole KV memory."""
    names = (sender.name, sender.incarnation, receiver.name, receiver.incarnation)
    body = b""
    for name in names:
        encoded = name.encode()
        if len(encoded) > _MAX_NAME_BYTES:
            raise TransferError(TransferFailure.OVERSIZED, f"a worker name of {len(encoded)} bytes")
        body += bytes([len(encoded)]) + encoded
    return Frame(kind=Kind.HELLO, layout=layout, num_blocks=num_blocks, length=num_bytes, body=body)


def parties(frame: Frame) -> tuple[WorkerId, WorkerId]:
    """Return the sender and the receiver that a HELLO names.

    Raises:
        TransferError: CORRUPT.
    """
    names: list[str] = []
    rest = frame.body
    while rest and len(names) < 4:
        size = rest[0]
        if len(rest) < 1 + size:
            break
        names.append(rest[1 : 1 + size].decode(errors="replace"))
        rest = rest[1 + size :]
    if rest or len(names) != 4:
        raise TransferError(TransferFailure.CORRUPT, "a greeting that names no two workers")
    return WorkerId(names[0], names[1]), WorkerId(names[2], names[3])


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The receiver's answer."""

    #: Bytes that may be in flight, and those of the largest piece.
    window_bytes: int
    piece_bytes: int
    #: Whether pieces may be packed. Peers that know nothing of it neither say nor read it.
    takes_packed: bool = False


def grant(wanted: Grant) -> Frame:
    """Return the frame of a grant."""
    codings = 1 << Coding.PACKED if wanted.takes_packed else 0
    body = _GRANT.pack(wanted.piece_bytes)
    return Frame(kind=Kind.GRANT, length=wanted.window_bytes, num_layers=codings, body=body)


def granted(frame: Frame) -> Grant:
    """Return what a GRANT says.

    Raises:
        TransferError: CORRUPT.
    """
    if len(frame.body) != _GRANT.size:
        raise TransferError(TransferFailure.CORRUPT, "a grant without a piece size")
    (piece_bytes,) = _GRANT.unpack(frame.body)
    return Grant(
        window_bytes=frame.length,
        piece_bytes=int(piece_bytes),
        takes_packed=bool(frame.num_layers >> Coding.PACKED & 1),
    )
