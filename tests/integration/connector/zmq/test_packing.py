"""Packed pieces by `zmq`: the same bytes and digests as plain ones, between every two peers."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kernels.bf16_stream import pack
from shared.connector.packing.rule import PackingMode
from shared.connector.protocol.frame import Coding, Kind
from shared.connector.protocol.greeting import hello
from shared.connector.zeromq.connector import ZmqConnector
from shared.errors import TransferError, TransferFailure
from shared.kv.hand_off import Holder
from shared.kv.layout import KVLayout
from shared.kv.split import KVSplit
from tests.integration.connector.harnesses import ZmqHarness, ZmqRaw
from tests.suites.connector.group_transfer import begin, every_kind, groups, send_all
from tests.suites.connector.harness import NUM_BLOCKS, Worker, a_piece, an_open, expect, running
from tests.suites.connector.harness import layout_fingerprint as fingerprint

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from shared.connector.base import InboundTransfer, Receipt
    from shared.connector.protocol.limits import TransferLimits
    from shared.connector.protocol.transport import Transport
    from shared.identity import WorkerId
    from shared.kv.memory import KVMemory

LAYOUT = KVLayout.single(num_layers=2, num_kv_heads=2, block_size=8, head_dim=32, dtype="bfloat16")
ON, OFF, AUTO = PackingMode.ON, PackingMode.OFF, PackingMode.AUTO


class PackingHarness(ZmqHarness):
    """By name of the worker: its mode."""

    def __init__(self, **modes: PackingMode) -> None:
        super().__init__()
        self._modes = modes

    def make(self, worker: WorkerId, memory: KVMemory, limits: TransferLimits) -> Transport:
        mode = self._modes[worker.name.split("-")[0]]
        limits = replace(limits, window_bytes=1 << 20, piece_bytes=3 * LAYOUT.block_bytes)
        return ZmqConnector(worker=worker, memory=memory, limits=limits, packing=mode)


@asynccontextmanager
async def workers(
    *, sender: PackingMode = ON, receiver: PackingMode = ON, layout: KVLayout = LAYOUT
) -> AsyncIterator[list[Worker]]:
    harness = PackingHarness(sender=sender, receiver=receiver)
    async with running(harness, "sender", "receiver", layout=layout) as made:
        rng = np.random.default_rng(1)
        numbers = rng.standard_normal(made[0].blocks.size // 2).astype("<f4").view("<u4") >> 16
        made[0].blocks[:] = numbers.astype("<u2").view(np.uint8).reshape(made[0].blocks.shape)
        # One block does not shrink.
        made[0].blocks[5] = rng.integers(0, 256, len(made[0].blocks[5]), np.uint8)
        yield made


async def transfer(sender: Worker, receiver: Worker) -> tuple[Receipt, int, int]:
    """Move ten blocks; return the receipt, the sender's digest and its bytes on the wire."""
    sources, targets = list(range(12, 2, -1)), list(range(20, 30))
    inbound = await receiver.open(sender.id, targets)
    outbound = await sender.connector.connect(inbound.ticket, 5)
    await outbound.push(4, sources[4:])
    await outbound.push(0, sources[:4])
    digest = await outbound.finish(5)
    receipt = await inbound.wait(5)
    assert np.array_equal(receiver.blocks[targets], sender.blocks[sources])
    return receipt, digest, outbound.num_wire_bytes


async def test_packed_pieces_are_the_same_transfer_in_fewer_bytes() -> None:
    """Beside a sender, or a receiver, that packs nothing or does not know of it."""
    found = {}
    for here, there in ((ON, ON), (ON, OFF), (OFF, ON), (AUTO, AUTO)):
        async with workers(sender=here, receiver=there) as [sender, receiver]:
            found[here, there] = await transfer(sender, receiver)
    for modes, (receipt, digest, num_wire_bytes) in found.items():
        assert receipt.digest == digest == found[OFF, ON][1]
        assert receipt.num_wire_bytes == num_wire_bytes
        assert receipt.num_bytes == 10 * LAYOUT.block_bytes
        if modes == (ON, ON):
            # The block that does not shrink is one of three in its piece.
            assert 0.75 < num_wire_bytes / receipt.num_bytes < 0.85
        else:
            assert num_wire_bytes == receipt.num_bytes


async def test_memory_of_packed_pieces_is_used_again_when_they_have_left() -> None:
    async with workers() as [sender, receiver]:
        for number in range(6):
            sender.blocks[3:13] = np.roll(sender.blocks[3:13], number, axis=0)
            await transfer(sender, receiver)
        rooms = sender.connector._access._rooms
        async with asyncio.timeout(5):
            # The socket's thread frees a message in its own time, and the next piece looks for it.
            while not rooms:
                await transfer(sender, receiver)
        assert len(rooms) <= 4


async def test_numbers_of_other_types_stay_as_they_are() -> None:
    for dtype in ("float32", "float16", "int8", "float8_e4m3fn"):
        layout = KVLayout.of(LAYOUT.groups, block_size=8, dtype=dtype)
        async with workers(layout=layout) as [sender, receiver]:
            receipt, _, num_wire_bytes = await transfer(sender, receiver)
            assert receipt.num_bytes == receipt.num_wire_bytes == num_wire_bytes


def wide(block_size: int) -> KVLayout:
    """A group of each kind, with heads of a kibibyte."""
    layout = every_kind(block_size, "bfloat16")
    full, latent, window, state = layout.groups
    full, latent, window = (
        replace(group, head_dim=size) for group, size in ((full, 160), (latent, 640), (window, 192))
    )
    return KVLayout.of((full, latent, window, state), block_size=block_size, dtype="bfloat16")


async def test_groups_of_unequal_size_pack_their_parts() -> None:
    """Heads, windows, latents and states, from stages to ranks, in blocks of two sizes."""
    splits = KVSplit(2, ((1, 0, 2, 1), (3, 2, 0, 1))), KVSplit(3, ((4, 2, 2, 2),))
    holders = [Holder(wide(size), split) for size, split in zip((8, 4), splits, strict=True)]
    found = {}
    for mode in (ON, OFF):
        harness = PackingHarness(sender=mode, receiver=mode)
        async with groups(harness, *holders) as (sender, receiver):
            for memory in sender.arenas.memories:
                # Numbers of few exponents; the states' do not shrink.
                memory.blocks[:, 1::2] = memory.blocks[:, 1::2] % 4 + 0x3C
            pushed = await begin(sender, receiver)
            waiting = asyncio.create_task(pushed.inbound.wait(20))
            await send_all(sender, pushed.outbound)
            receipt = await waiting
            wire = sum(stream.num_wire_bytes for stream in receipt.streams.values())
            found[mode] = receipt.digest, wire, [m.blocks.copy() for m in receiver.arenas.memories]
            num_bytes = receipt.num_bytes
    assert found[ON][0] == found[OFF][0]
    assert found[ON][1] < 0.97 * num_bytes
    assert found[OFF][1] == num_bytes
    assert all(map(np.array_equal, found[ON][2], found[OFF][2]))


async def enter(receiver: Worker, inbound: InboundTransfer) -> ZmqRaw:
    """A raw connection that has presented the ticket."""
    raw = ZmqRaw(receiver.connector.offer().address)
    ticket = inbound.ticket
    greeting = hello(
        sender=ticket.sender,
        receiver=receiver.id,
        layout=fingerprint(LAYOUT),
        num_blocks=NUM_BLOCKS,
        num_bytes=NUM_BLOCKS * LAYOUT.block_bytes,
    )
    await raw.send(greeting.encode())
    grant = await expect(raw, Kind.GRANT)
    assert grant.num_layers == (
        1 << Coding.PACKED if receiver.connector._receiver._takes_packed else 0
    )
    await raw.send(an_open(ticket).encode())
    await expect(raw, Kind.READY)
    return raw


def damaged(streams: np.ndarray, kind: str) -> list[bytes]:
    data = bytearray(streams.tobytes())
    match kind:
        case "a-flipped-number":
            data[200] ^= 1
        case "a-flipped-code":
            data[24 + 4 + 2048 + 9] ^= 1
        case "another-first-exponent":
            data[24] ^= 1
        case "cut-off":
            del data[-1:]
        case "too-long":
            data += b"\0"
        case "no-stream":
            data[:4] = b"NOPE"
        case "of-fewer-bytes":
            data[8:16] = (64).to_bytes(8, "little")
        case "larger-than-plain":
            data = data.ljust(3 * LAYOUT.block_bytes, b"\0")
        case "in-two-parts":
            return [bytes(data[:100]), bytes(data[100:])]
        case _:
            assert kind == "nothing"
            return []
    return [bytes(data)]


@pytest.mark.parametrize(
    "kind",
    [
        "a-flipped-number",
        "a-flipped-code",
        "another-first-exponent",
        "cut-off",
        "too-long",
        "no-stream",
        "of-fewer-bytes",
        "larger-than-plain",
        "in-two-parts",
        "nothing",
    ],
)
async def test_damaged_streams_fail_the_transfer_by_name(kind: str) -> None:
    async with workers() as [sender, receiver]:
        before = receiver.blocks.copy()
        inbound = await receiver.open(sender.id, range(8, 12))
        raw = await enter(receiver, inbound)
        payload = [sender.blocks[0].tobytes(), sender.blocks[1].tobytes()]
        streams = np.concatenate([pack(sender.blocks[at]) for at in (0, 1)])
        frame = a_piece(inbound.ticket, 0, payload, coding=Coding.PACKED)
        await raw.send(frame.encode(), damaged(streams, kind))
        with pytest.raises(TransferError) as error:
            await inbound.wait(5)
        oversized = kind == "larger-than-plain"
        expected = TransferFailure.OVERSIZED if oversized else TransferFailure.CORRUPT
        assert error.value.reason is expected
        assert np.array_equal(receiver.blocks[12:], before[12:])
        assert np.array_equal(receiver.blocks[:8], before[:8])
        await raw.hang_up()


async def test_packed_pieces_that_were_not_offered_are_refused() -> None:
    async with workers(receiver=OFF) as [sender, receiver]:
        inbound = await receiver.open(sender.id, range(8, 12))
        raw = await enter(receiver, inbound)
        payload = [sender.blocks[0].tobytes()]
        frame = a_piece(inbound.ticket, 0, payload, coding=Coding.PACKED)
        await raw.send(frame.encode(), [pack(sender.blocks[0]).tobytes()])
        with pytest.raises(TransferError, match="not offered") as error:
            await inbound.wait(5)
        assert error.value.reason is TransferFailure.CORRUPT
        await raw.hang_up()
