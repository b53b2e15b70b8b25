"""The proxy's reading of ZeroMQ's protocol: what it writes again is what came, cut anywhere."""

from __future__ import annotations

import pytest

from benchmarks.faults.wire.damage import flipped, truncated
from benchmarks.faults.wire.zmtp import Message, ZmtpReader
from shared.connector.protocol.frame import Frame, Kind

GREETING = bytes(64)
COMMAND = bytes([4, 3]) + b"abc"
ID = bytes(range(16))
PIECE = Message([Frame(kind=Kind.PIECE, transfer_id=ID, num_blocks=1).encode(), bytes(1000)])
DONE = Message([Frame(kind=Kind.DONE, transfer_id=ID).encode()])
WIRE = GREETING + COMMAND + PIECE.encode() + COMMAND + DONE.encode()


def read(step: int) -> list[bytes | Message]:
    reader = ZmtpReader()
    return [
        unit
        for start in range(0, len(WIRE), step)
        for unit in reader.feed(WIRE[start : start + step])
    ]


@pytest.mark.parametrize("step", [1, 7, 64, 70, 5000])
def test_bytes_cut_anywhere_are_written_again_as_they_came(step: int) -> None:
    units = read(step)
    again = b"".join(unit.encode() if isinstance(unit, Message) else unit for unit in units)
    assert again == WIRE


def test_messages_are_told_apart_by_kind_and_transfer() -> None:
    piece, done = (unit for unit in read(100) if isinstance(unit, Message))
    assert (piece.kind, done.kind) == (Kind.PIECE, Kind.DONE)
    assert piece.transfer_id == done.transfer_id == ID
    assert piece.parts == PIECE.parts


def test_other_messages_have_no_kind() -> None:
    assert Message([b"hello"]).kind is None
    assert Message([b"X" * 200]).kind is None


def test_damage_reaches_the_payload_and_leaves_the_frame() -> None:
    for damaged in (flipped(PIECE), truncated(PIECE)):
        assert isinstance(damaged, Message)
        assert damaged.parts[0] == PIECE.parts[0]
        assert damaged.parts[1] != PIECE.parts[1]
        assert damaged.encode() != PIECE.encode()


def test_bytes_that_are_no_message_are_damaged_by_one_bit_or_by_half() -> None:
    assert truncated(b"abcd") == b"ab"
    changed = flipped(b"abcd")
    assert isinstance(changed, bytes)
    assert sum(a != b for a, b in zip(changed, b"abcd", strict=True)) == 1
