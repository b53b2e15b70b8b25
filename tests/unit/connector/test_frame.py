"""Frames: what is encoded is what is decoded, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.connector.protocol.checksum import layout_fingerprint
from shared.connector.protocol.frame import (
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    MAX_LENGTH,
    MAX_PIECE_BLOCKS,
    Frame,
    Kind,
    decode,
)
from shared.connector.protocol.greeting import Grant, grant, granted, hello, parties
from shared.errors import TransferError, TransferFailure
from shared.identity import WorkerId
from shared.kv.layout import KVLayout

U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    kind = draw(st.sampled_from(Kind))
    num_blocks = draw(st.integers(1, 40)) if kind is Kind.PIECE else draw(U32)
    size = draw(st.sampled_from([0, 4])) * num_blocks if kind is Kind.PIECE else 17
    return Frame(
        kind=kind,
        transfer_id=draw(st.binary(min_size=16, max_size=16)),
        reason=draw(st.sampled_from([None, *TransferFailure])),
        layout=draw(U64),
        first_index=draw(U32),
        num_blocks=num_blocks,
        first_layer=draw(U16),
        num_layers=draw(U16),
        length=draw(st.integers(0, MAX_LENGTH)),
        digest=draw(U64),
        body=draw(st.binary(min_size=size, max_size=size)),
    )


@given(frame=frames())
def test_a_frame_survives_the_wire(frame: Frame) -> None:
    assert decode(frame.encode()) == frame
    assert decode(memoryview(frame.encode())) == frame


@given(frame=frames(), data=st.data())
def test_any_flipped_bit_is_noticed(frame: Frame, data: st.DataObject) -> None:
    encoded = bytearray(frame.encode())
    position = data.draw(st.integers(0, len(encoded) - 1))
    encoded[position] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(TransferError) as error:
        decode(bytes(encoded))
    assert error.value.reason is TransferFailure.CORRUPT


@given(frame=frames(), cut=st.integers(1, 200))
def test_a_cut_frame_is_corrupt(frame: Frame, cut: int) -> None:
    with pytest.raises(TransferError):
        decode(frame.encode()[:-cut])


@given(data=st.binary(max_size=300))
def test_noise_is_never_a_frame(data: bytes) -> None:
    with pytest.raises(TransferError):
        decode(data)


@pytest.mark.parametrize("reason", [None, *TransferFailure])
def test_every_reason_can_be_sent(reason: TransferFailure | None) -> None:
    frame = Frame(kind=Kind.REFUSE, reason=reason)
    assert decode(frame.encode()).reason is reason


def test_more_bytes_than_any_frame_has_are_oversized() -> None:
    _is_refused(bytes(MAX_FRAME_BYTES + 1), TransferFailure.OVERSIZED)


def test_absurd_lengths_are_oversized() -> None:
    frame = Frame(kind=Kind.ACK, length=MAX_LENGTH + 1)
    _is_refused(frame.encode(), TransferFailure.OVERSIZED)


def test_pieces_of_too_many_blocks_are_oversized() -> None:
    frame = Frame(kind=Kind.PIECE, num_blocks=MAX_PIECE_BLOCKS + 1, body=b"")
    _is_refused(frame.encode(), TransferFailure.OVERSIZED)


@pytest.mark.parametrize(("num_blocks", "body_bytes"), [(0, 0), (2, 4), (1, 8)])
def test_pieces_name_all_their_blocks_or_none(num_blocks: int, body_bytes: int) -> None:
    frame = Frame(kind=Kind.PIECE, num_blocks=num_blocks, body=bytes(body_bytes))
    _is_refused(frame.encode(), TransferFailure.CORRUPT)


def test_a_piece_tells_its_sources() -> None:
    assert Frame(kind=Kind.PIECE, num_blocks=2).sources.tolist() == []
    body = np.array([8, 9], "<u4").tobytes()
    assert Frame(kind=Kind.PIECE, num_blocks=2, body=body).sources.tolist() == [8, 9]


def test_the_header_is_what_the_format_says() -> None:
    """Peers of other versions read these bytes: whoever changes them raises VERSION."""
    frame = Frame(kind=Kind.OPEN, transfer_id=bytes(range(16)), num_blocks=3)
    assert HEADER_BYTES == 72
    assert frame.encode()[:24].hex() == "42544e5402030000" + bytes(range(16)).hex()


def test_a_greeting_names_both_workers() -> None:
    sender, receiver = WorkerId("préfill", "1"), WorkerId("decode", "")
    frame = hello(sender=sender, receiver=receiver, layout=1, num_blocks=2, num_bytes=3)
    assert parties(decode(frame.encode())) == (sender, receiver)


@pytest.mark.parametrize("body", [b"", b"\1a", b"\1a\1b\1c", b"\1a\1b\1c\2d", b"\1a" * 5])
def test_other_greetings_are_corrupt(body: bytes) -> None:
    with pytest.raises(TransferError):
        parties(Frame(kind=Kind.HELLO, body=body))


def test_endless_names_are_refused_where_they_are_made() -> None:
    name = WorkerId("x" * 256, "1")
    with pytest.raises(TransferError):
        hello(sender=name, receiver=name, layout=1, num_blocks=1, num_bytes=1)


def test_a_grant_tells_window_and_piece() -> None:
    for takes_packed in (False, True):
        wanted = Grant(window_bytes=7, piece_bytes=5, takes_packed=takes_packed)
        assert granted(decode(grant(wanted).encode())) == wanted
    with pytest.raises(TransferError):
        granted(Frame(kind=Kind.GRANT, length=7))


def test_layouts_that_differ_in_any_field_have_other_fingerprints() -> None:
    fields = {"num_layers": 2, "num_kv_heads": 3, "block_size": 4, "head_dim": 5}
    layouts = [KVLayout.single(**fields, dtype=dtype) for dtype in ("float16", "bfloat16")]
    layouts += [replace(layouts[0], version=2), replace(layouts[0], scales="f00d")]
    layouts.append(KVLayout.of(layouts[0].groups * 2, block_size=4, dtype="float16"))
    layouts += [KVLayout.single(**(fields | {name: 9}), dtype="float16") for name in fields]
    assert len({layout_fingerprint(layout) for layout in layouts}) == len(layouts)
    assert layout_fingerprint(layouts[0]) == 17259049017419180881


def _is_refused(data: bytes, reason: TransferFailure) -> None:
    with pytest.raises(TransferError) as error:
        decode(data)
    assert error.value.reason is reason
