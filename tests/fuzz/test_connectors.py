"""Frames between workers: changed conversations are refused or exact, and leave nothing behind."""

from __future__ import annotations

import asyncio
import importlib.util
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.connector.protocol.checksum import layout_fingerprint
from shared.connector.protocol.frame import Frame, Kind, decode
from shared.connector.protocol.greeting import granted, hello, parties
from shared.errors import TransferError
from shared.identity import WorkerId
from tests.fuzz.cases import COUNTS, open_site, profile
from tests.fuzz.mutation import LARGE, NUMBERS, mutate
from tests.integration.connector.harnesses import (
    LocalHarness,
    NixlHarness,
    ShmHarness,
    ZmqHarness,
    ZmqIpcHarness,
)
from tests.suites.connector.harness import (
    BLOCK_BYTES,
    LAYOUT,
    NUM_BLOCKS,
    SENTINEL,
    a_done,
    a_piece,
    an_open,
    running,
    some_blocks,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.suites.connector.harness import Harness, RawPeer, Worker

SENDER = WorkerId("sender", "1")
GOOD = some_blocks(4)
#: At the same time, each with its own blocks; every other block must stay as it is.
NUM_TALKS = 6
NUM_ROUNDS = 5
NAMES = ("local", "shm", "zmq", "zmq_ipc", "nixl")
Said = tuple[bytes, tuple[bytes, ...]]


@pytest.fixture(params=NAMES)
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Harness:
    tmp_path.chmod(0o700)
    match request.param:
        case "local":
            return LocalHarness()
        case "shm":
            return ShmHarness(tmp_path)
        case "zmq":
            return ZmqHarness()
        case "zmq_ipc":
            return ZmqIpcHarness(tmp_path)
    if importlib.util.find_spec("nixl") is None:
        pytest.skip("the extra `nixl` is not installed")
    return NixlHarness()


@profile(1, 30)
@given(seed=st.integers(0, 2**64 - 1))
def test_conversations(harness: Harness, seed: int) -> None:
    name = harness.__class__.__name__.removesuffix("Harness").lower()
    with open_site(f"connector: {name}") as site:
        site.run(_examples(harness, Random(seed)))
        COUNTS[site.surface] += NUM_TALKS * NUM_ROUNDS


async def _examples(harness: Harness, random: Random) -> None:
    async with running(harness, "receiver") as [receiver]:
        for _ in range(NUM_ROUNDS):
            receiver.blocks[:] = SENTINEL
            talks = [_talk(harness, receiver, random, i * 5) for i in range(NUM_TALKS)]
            verified = await asyncio.gather(*talks)
            for i in range(NUM_BLOCKS):
                talk, place = divmod(i, 5)
                data = receiver.blocks[i].tobytes()
                if place < 4 and talk < NUM_TALKS:
                    assert not verified[talk] or data == GOOD[place]
                else:
                    assert data == bytes([SENTINEL]) * BLOCK_BYTES
        # Whatever was said, the next who behaves is served.
        assert await _talk(harness, receiver, None, 0)


async def _talk(harness: Harness, receiver: Worker, random: Random | None, first: int) -> bool:
    """One conversation; says whether the receiver took its blocks for verified."""
    inbound = await receiver.open(SENDER, range(first, first + 4))
    ticket = inbound.ticket
    said: list[Said] = [
        (_hello(receiver).encode(), ()),
        (an_open(ticket).encode(), ()),
        (a_piece(ticket, 0, GOOD[:2]).encode(), tuple(GOOD[:2])),
        (a_piece(ticket, 2, GOOD[2:]).encode(), tuple(GOOD[2:])),
        (a_done(ticket, GOOD[:2], GOOD[2:]).encode(), ()),
    ]
    if random is not None:
        said = _changed(random, said)
    raw = await harness.raw(receiver.connector.offer().address)
    waiting = asyncio.create_task(inbound.wait(5 if random is None else 0.2))
    try:
        for data, payload in said:
            with suppress(TimeoutError):
                async with asyncio.timeout(5 if random is None else 0.2):
                    await raw.send(data, payload if _is_piece(data) else ())
                    await _let_in(raw, data)
        with suppress(TransferError):
            await waiting
            return True
        return False
    finally:
        await raw.hang_up()
        await inbound.abort()
        await asyncio.gather(waiting, return_exceptions=True)


async def _let_in(raw: RawPeer, data: bytes) -> None:
    """One that writes by itself has to hear first that it may."""
    if hasattr(raw, "_let_in") and data[5:6] == bytes([Kind.OPEN]):
        while (await raw.receive()).kind not in (Kind.READY, Kind.REFUSE):
            pass


def _hello(receiver: Worker) -> Frame:
    return hello(
        sender=SENDER,
        receiver=receiver.id,
        layout=layout_fingerprint(LAYOUT),
        num_blocks=NUM_BLOCKS,
        num_bytes=NUM_BLOCKS * BLOCK_BYTES,
    )


def _is_piece(data: bytes) -> bool:
    with suppress(TransferError):
        return decode(data).kind is Kind.PIECE
    return False


def _changed(random: Random, said: list[Said]) -> list[Said]:
    said = list(said)
    for _ in range(random.randint(1, 3)):
        if not said:
            break
        at = random.randrange(len(said))
        data, payload = said[at]
        match random.randrange(8):
            case 0:
                said[at] = (mutate(random, data, tuple(d for d, _ in said)), payload)
            case 1:
                said.insert(random.randrange(len(said) + 1), said[at])
            case 2:
                del said[at]
            case 3:
                other = random.randrange(len(said))
                said[at], said[other] = said[other], said[at]
            case 4 | 5:
                said[at] = (_field_changed(random, data), payload)
            case 6 if payload:
                blocks = [bytearray(block) for block in payload]
                blocks[random.randrange(len(blocks))][random.randrange(BLOCK_BYTES)] ^= 1
                said[at] = (data, tuple(map(bytes, blocks)))
            case _:
                frame = Frame(
                    kind=random.choice(list(Kind)),
                    transfer_id=random.choice((bytes(16), random.randbytes(16), data[8:24])),
                    num_blocks=random.choice((0, 1, 4, 2**32 - 1)),
                    length=random.choice((0, 1, BLOCK_BYTES, 1 << 40)),
                    body=random.randbytes(random.choice((0, 4, 8, 300))),
                )
                said.insert(at, (frame.encode(), ()))
    return said


def _field_changed(random: Random, data: bytes) -> bytes:
    """Another value in one field, under a checksum that is right."""
    with suppress(TransferError):
        frame = decode(data)
        name = random.choice(
            ("layout", "first_index", "num_blocks", "first_layer", "num_layers", "length", "digest")
        )
        value = random.choice([n for n in (*NUMBERS, *LARGE) if n >= 0])
        bits = {"first_layer": 16, "num_layers": 16, "first_index": 32, "num_blocks": 32}
        value %= 1 << bits.get(name, 64)
        return replace(frame, **{name: value}).encode()
    return data


FRAMES = tuple(
    Frame(kind=kind, num_blocks=2, num_layers=2, length=64, body=bytes(8)).encode() for kind in Kind
)


@profile(40, 600)
@given(st.integers(0, 2**64 - 1))
def test_frames(seed: int) -> None:
    """The parser by itself, fifty at a time: a frame or a TransferError."""
    random = Random(seed)
    for _ in range(50):
        data = mutate(random, random.choice(FRAMES), FRAMES)
        for frame in (data, _resealed(data)):
            with suppress(TransferError):
                _read(decode(frame))
    COUNTS["connector: frames"] += 50


def _read(frame: Frame) -> None:
    for reader in (parties, granted):
        with suppress(TransferError):
            reader(frame)


def _resealed(data: bytes) -> bytes:
    """The same with a right checksum, so that what lies behind it is read as well."""
    import struct

    import xxhash

    from shared.connector.protocol.frame import _FIELDS, HEADER_BYTES

    if len(data) < HEADER_BYTES:
        return data
    head, body = data[: _FIELDS.size], data[HEADER_BYTES:]
    return head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head + body)) + body
