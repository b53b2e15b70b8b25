"""The bodies of the two frames that open a connection: both identities, and the window."""

from __future__ import annotations

import struct

from shared.connector.protocol.frame import Frame, Kind
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


def grant(*, window_bytes: int, piece_bytes: int) -> Frame:
    """Return the receiver's answer: bytes that may be in flight, and bytes of the largest piece."""
    return Frame(kind=Kind.GRANT, length=window_bytes, body=_GRANT.pack(piece_bytes))


def granted(frame: Frame) -> tuple[int, int]:
    """Return the window and the largest piece of a GRANT, in bytes.

    Raises:
        TransferError: CORRUPT.
    """
    if len(frame.body) != _GRANT.size:
        raise TransferError(TransferFailure.CORRUPT, "a grant without a piece size")
    (piece_bytes,) = _GRANT.unpack(frame.body)
    return frame.length, int(piece_bytes)
