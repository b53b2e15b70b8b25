"""The frames of connectors: one fixed header, a short body, and no pickle.

The payload of a piece is not part of its frame: it follows on the wire (`zmq`), packed perhaps, or
the frame's body names its location (`shm`). Everything is checked before any memory is allocated
for it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from shared.errors import TransferError, TransferFailure

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAGIC = b"BTNT"
#: Raised when a peer of the previous version could misread a frame.
VERSION = 2
ID_BYTES = 16
#: The transfer id of frames that concern the whole connection.
NO_TRANSFER = bytes(ID_BYTES)
#: Bounds the list of source blocks, so that every frame fits one datagram of a Unix socket.
MAX_PIECE_BLOCKS = 4096
MAX_BODY_BYTES = 4 * MAX_PIECE_BLOCKS
MAX_LENGTH = 1 << 48

# magic, version, kind, reason, coding, id, layout, first_index, num_blocks, first_layer,
# num_layers, body bytes, length, digest; the xxh3-64 of all that and the body comes last.
_FIELDS = struct.Struct("<4sBBBB16sQIIHHIQQ")
_CHECKSUM = struct.Struct("<Q")
HEADER_BYTES = _FIELDS.size + _CHECKSUM.size
MAX_FRAME_BYTES = HEADER_BYTES + MAX_BODY_BYTES


class Kind(IntEnum):
    """Kind of a frame. `→` goes from the sender of blocks to their receiver, `←` back."""

    HELLO = 1  # → the sender's and the receiver's identity; once, first
    GRANT = 2  # ← welcome: the window (length) and the largest piece (body), in bytes; the codings
    # that it takes besides PLAIN (num_layers, a bit for each)
    OPEN = 3  # → begin the transfer of this ticket
    READY = 4  # ← the ticket is accepted: send pieces
    PIECE = 5  # → some blocks
    ACK = 6  # ← a piece was taken or refused: its bytes (length) are free again
    DONE = 7  # → all was sent; the digest
    VERIFIED = 8  # ← all was received; the digest
    ABORT = 9  # → the sender stops, with the reason
    ABORTED = 10  # ← the receiver no longer reads the sender's blocks for this transfer
    REFUSE = 11  # ← this transfer is over, or was never yours, and why
    PROBE = 12  # ← are you there; never answered
    # Where the sender writes into the receiver's memory itself (`nixl`):
    DOOR = 13  # ← how to reach my memory (body), its address (length), how many blocks it has, and
    # on what it is (first_index): 0 for the host, n for the CUDA device n - 1
    PLACES = 14  # ← which of its blocks (body) are meant by the next indices of this transfer
    STOPPED = 15  # → no write for this transfer is under way, nor will be


class Coding(IntEnum):
    """What the payload of a piece is. Only what the receiver has offered is sent."""

    PLAIN = 0  # the bytes
    PACKED = 1  # a stream of kernels/bf16_stream for each block


#: The wire's numbers. Append only.
_REASONS: tuple[TransferFailure | None, ...] = (
    None,
    TransferFailure.UNKNOWN_TICKET,
    TransferFailure.DUPLICATE,
    TransferFailure.CORRUPT,
    TransferFailure.OVERSIZED,
    TransferFailure.OUT_OF_RANGE,
    TransferFailure.INCOMPLETE,
    TransferFailure.LAYOUT_MISMATCH,
    TransferFailure.ABORTED,
    TransferFailure.PEER_LOST,
    TransferFailure.TIMEOUT,
    TransferFailure.LATE,
)
_REASON_CODES = {reason: code for code, reason in enumerate(_REASONS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One message. `kind` decides which fields are used."""

    kind: Kind
    transfer_id: bytes = NO_TRANSFER
    coding: Coding = Coding.PLAIN
    reason: TransferFailure | None = None
    #: Fingerprint of the sender's layout: version, dtype and shape.
    layout: int = 0
    first_index: int = 0
    num_blocks: int = 0
    first_layer: int = 0
    num_layers: int = 0
    #: Bytes: of the blocks, however they are sent (PIECE, ACK), of the window (GRANT), of the
    #: memory (HELLO).
    length: int = 0
    #: Checksum of the bytes of a PIECE, or digest of all pieces of a transfer.
    digest: int = 0
    body: bytes = b""

    @property
    def sources(self) -> NDArray[np.uint32]:
        """Location of each block of a PIECE in the sender's memory; empty if the bytes follow."""
        return np.frombuffer(self.body, dtype="<u4")

    def encode(self) -> bytes:
        """Return the frame's bytes, checksum included."""
        fields = _FIELDS.pack(
            MAGIC,
            VERSION,
            self.kind,
            _REASON_CODES[self.reason],
            self.coding,
            self.transfer_id,
            self.layout,
            self.first_index,
            self.num_blocks,
            self.first_layer,
            self.num_layers,
            len(self.body),
            self.length,
            self.digest,
        )
        checksum = _CHECKSUM.pack(xxhash.xxh3_64_intdigest(fields + self.body))
        return b"".join((fields, checksum, self.body))


def decode(data: bytes | memoryview) -> Frame:
    """Parse and check one frame.

    Raises:
        TransferError: OVERSIZED if it is larger than any frame may be, else CORRUPT.
    """
    body = _checked_body(data)
    _, _, kind, reason, coding, *rest = _FIELDS.unpack_from(data)
    (
        transfer_id,
        layout,
        first_index,
        num_blocks,
        first_layer,
        num_layers,
        body_bytes,
        length,
        digest,
    ) = rest
    if kind not in _KINDS or reason >= len(_REASONS) or body_bytes != len(body):
        raise _corrupt(f"kind {kind}, reason {reason}, {len(body)} of {body_bytes} body bytes")
    if length > MAX_LENGTH:
        raise TransferError(TransferFailure.OVERSIZED, f"a length of {length} bytes")
    frame = Frame(
        kind=Kind(kind),
        transfer_id=transfer_id,
        coding=Coding(coding),
        reason=_REASONS[reason],
        layout=layout,
        first_index=first_index,
        num_blocks=num_blocks,
        first_layer=first_layer,
        num_layers=num_layers,
        length=length,
        digest=digest,
        body=body,
    )
    if frame.kind is Kind.PIECE:
        _check_piece(frame)
    return frame


_KINDS = frozenset(Kind)
_CODINGS = frozenset(Coding)


def _checked_body(data: bytes | memoryview) -> bytes:
    """Return the bytes after the header, if both are complete and of this protocol."""
    if len(data) > MAX_FRAME_BYTES:
        raise TransferError(TransferFailure.OVERSIZED, f"a frame of {len(data)} bytes")
    if len(data) < HEADER_BYTES:
        raise _corrupt(f"a frame of {len(data)} bytes")
    magic, version, kind, _, coding, *_ = _FIELDS.unpack_from(data)
    if magic != MAGIC or coding not in _CODINGS or (coding and kind != Kind.PIECE):
        raise _corrupt("not a transfer frame")
    if version != VERSION:
        raise _corrupt(f"protocol version {version}, not {VERSION}")
    body = bytes(data[HEADER_BYTES:])
    (checksum,) = _CHECKSUM.unpack_from(data, _FIELDS.size)
    if checksum != xxhash.xxh3_64_intdigest(bytes(data[: _FIELDS.size]) + body):
        raise _corrupt("the header's checksum does not match")
    return body


def _check_piece(frame: Frame) -> None:
    if frame.num_blocks > MAX_PIECE_BLOCKS:
        raise TransferError(TransferFailure.OVERSIZED, f"a piece of {frame.num_blocks} blocks")
    if frame.num_blocks == 0 or len(frame.body) not in (0, 4 * frame.num_blocks):
        raise _corrupt(f"{len(frame.body)} body bytes for {frame.num_blocks} blocks")


def _corrupt(what: str) -> TransferError:
    return TransferError(TransferFailure.CORRUPT, what)
