"""Peers that cheat, err or come late: what every connector does about them."""

from __future__ import annotations

import pytest

from shared.connector.protocol.frame import Frame, Kind
from shared.errors import TransferError, TransferFailure
from shared.identity import WorkerId
from tests.suites.connector.harness import (
    BLOCK_BYTES,
    SENTINEL,
    Harness,
    RawPeer,
    Worker,
    a_done,
    a_piece,
    an_open,
    checksum,
    enter,
    expect,
    greet,
    running,
    some_blocks,
)

SENDER = WorkerId("sender", "1")
GOOD = some_blocks(4)
WRONG = some_blocks(2, seed=1)
BAD_PIECES = {
    "wrong payload": ({"digest": checksum(WRONG)}, TransferFailure.CORRUPT),
    "longer than its blocks": ({"length": 3 * BLOCK_BYTES}, TransferFailure.OVERSIZED),
    "absurdly long": ({"length": 1 << 40}, TransferFailure.OVERSIZED),
    "shorter than its blocks": ({"length": BLOCK_BYTES}, TransferFailure.INCOMPLETE),
    "partly out of range": ({"first_index": 3}, TransferFailure.OUT_OF_RANGE),
    "far out of range": ({"first_index": (1 << 32) - 1}, TransferFailure.OUT_OF_RANGE),
    "layers that do not exist": ({"first_layer": 1}, TransferFailure.OUT_OF_RANGE),
    "some layers only": ({"num_layers": 1}, TransferFailure.OUT_OF_RANGE),
    "another layout": ({"layout": 1}, TransferFailure.LAYOUT_MISMATCH),
}
BAD_BYTES = {
    "nothing": lambda data: b"\0",
    "cut short": lambda data: data[:-1],
    "a bit flipped in the header": lambda data: _flip(data, 30),
    "a bit flipped in the checksum": lambda data: _flip(data, 60),
    "another protocol version": lambda data: data[:4] + b"\x09" + data[5:],
}


def _flip(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 16]) + data[position + 1 :]


class FrameSuite:
    """Run on every connector by subclasses that provide `harness`."""

    @pytest.mark.parametrize("name", BAD_PIECES)
    async def test_a_bad_piece_fails_the_transfer_on_both_sides(
        self, harness: Harness, name: str
    ) -> None:
        overrides, reason = BAD_PIECES[name]
        async with running(harness, "receiver") as [receiver]:
            inbound = await receiver.open(SENDER, range(4))
            raw = await enter(harness, receiver, inbound)
            await raw.send(a_piece(inbound.ticket, 0, GOOD[:2], **overrides).encode(), GOOD[:2])
            assert (await expect(raw, Kind.REFUSE)).reason is reason
            with pytest.raises(TransferError) as error:
                await inbound.wait(5)
            assert error.value.reason is reason
            assert receiver.connector.refusals == {reason: 1}
            await raw.hang_up()

    async def test_bad_pieces_write_outside_no_open_transfer(self, harness: Harness) -> None:
        async with running(harness, "receiver") as [receiver]:
            receiver.blocks[:] = SENTINEL
            for overrides, _ in BAD_PIECES.values():
                inbound = await receiver.open(SENDER, [4, 6, 8, 10])
                raw = await enter(harness, receiver, inbound)
                frame = a_piece(inbound.ticket, 0, GOOD[:2], **overrides)
                await raw.send(frame.encode(), GOOD[:2])
                await expect(raw, Kind.REFUSE)
                await raw.hang_up()
            untouched = [i for i in range(len(receiver.blocks)) if i not in (4, 6, 8, 10)]
            assert (receiver.blocks[untouched] == SENTINEL).all()

    @pytest.mark.parametrize("name", BAD_BYTES)
    async def test_bytes_that_are_no_frame_end_the_connection(
        self, harness: Harness, name: str
    ) -> None:
        async with running(harness, "receiver") as [receiver]:
            inbound = await receiver.open(SENDER, range(4))
            raw = await enter(harness, receiver, inbound)
            await raw.send(BAD_BYTES[name](a_piece(inbound.ticket, 0, GOOD).encode()), GOOD)
            with pytest.raises(TransferError) as error:
                await inbound.wait(5)
            assert error.value.reason is TransferFailure.CORRUPT
            assert receiver.connector.refusals == {TransferFailure.CORRUPT: 1}
            await raw.hang_up()

    async def test_a_duplicate_piece_fails_the_transfer(self, harness: Harness) -> None:
        async with running(harness, "receiver") as [receiver]:
            inbound = await receiver.open(SENDER, range(4))
            raw = await enter(harness, receiver, inbound)
            for first in (0, 1):
                piece = GOOD[first : first + 2]
                await raw.send(a_piece(inbound.ticket, first, piece).encode(), piece)
                if first == 0:
                    await expect(raw, Kind.ACK)
            assert (await expect(raw, Kind.REFUSE)).reason is TransferFailure.DUPLICATE
            assert inbound.num_blocks_received == 2
            await _fails(inbound.wait(5), TransferFailure.DUPLICATE)
            await raw.hang_up()

    async def test_every_piece_gives_its_credit_back_even_if_refused(
        self, harness: Harness
    ) -> None:
        async with running(harness, "receiver") as [receiver]:
            inbound = await receiver.open(SENDER, range(4))
            raw = await enter(harness, receiver, inbound)
            for _ in range(3):
                await raw.send(a_piece(inbound.ticket, 0, GOOD[:1]).encode(), GOOD[:1])
                assert (await expect(raw, Kind.ACK)).length == BLOCK_BYTES
            await raw.hang_up()

    @pytest.mark.parametrize("ending", ["abort", "finish"])
    async def test_a_late_piece_is_refused_and_not_written(
        self, harness: Harness, ending: str
    ) -> None:
        async with running(harness, "receiver") as [receiver]:
            inbound = await receiver.open(SENDER, range(4))
            raw = await enter(harness, receiver, inbound)
            if ending == "abort":
                await inbound.abort()
                assert (await expect(raw, Kind.REFUSE)).reason is TransferFailure.ABORTED
            else:
                await raw.send(a_piece(inbound.ticket, 0, GOOD).encode(), GOOD)
                await raw.send(a_done(inbound.ticket, GOOD).encode())
                await inbound.wait(5)
                # One that writes by itself may do so until it has heard that all is over.
                await expect(raw, Kind.VERIFIED)
            receiver.blocks[:] = SENTINEL
            await raw.send(a_piece(inbound.ticket, 0, GOOD).encode(), GOOD)
            assert (await expect(raw, Kind.REFUSE)).reason is TransferFailure.LATE
            assert (receiver.blocks == SENTINEL).all()
            assert receiver.connector.refusals == {TransferFailure.LATE: 1}
            await raw.hang_up()

    async def test_done_before_everything_came_is_incomplete(self, harness: Harness) -> None:
        async with running(harness, "receiver") as [receiver]:
            inbound = await receiver.open(SENDER, range(4))
            raw = await enter(harness, receiver, inbound)
            await raw.send(a_piece(inbound.ticket, 0, GOOD[:3]).encode(), GOOD[:3])
            await raw.send(a_done(inbound.ticket, GOOD).encode())
            assert (await expect(raw, Kind.REFUSE)).reason is TransferFailure.INCOMPLETE
            await _fails(inbound.wait(5), TransferFailure.INCOMPLETE)
            await raw.hang_up()

    async def test_done_with_another_digest_is_corrupt(self, harness: Harness) -> None:
        async with running(harness, "receiver") as [receiver]:
            inbound = await receiver.open(SENDER, range(4))
            raw = await enter(harness, receiver, inbound)
            await raw.send(a_piece(inbound.ticket, 0, GOOD).encode(), GOOD)
            await raw.send(a_done(inbound.ticket, GOOD[::-1]).encode())
            await _fails(inbound.wait(5), TransferFailure.CORRUPT)
            await raw.hang_up()

    async def test_an_unknown_ticket_is_refused(self, harness: Harness) -> None:
        async with running(harness, "receiver") as [receiver]:
            raw = await greet(harness, receiver, SENDER)
            await raw.send(Frame(kind=Kind.OPEN, transfer_id=b"x" * 16, num_blocks=1).encode())
            assert (await expect(raw, Kind.REFUSE)).reason is TransferFailure.UNKNOWN_TICKET
            assert receiver.connector.refusals == {TransferFailure.UNKNOWN_TICKET: 1}
            await raw.hang_up()

    async def test_a_stranger_with_a_ticket_is_refused_and_does_it_no_harm(
        self, harness: Harness
    ) -> None:
        async with running(harness, "receiver") as [receiver]:
            inbound = await receiver.open(SENDER, range(4))
            stranger = await greet(harness, receiver, WorkerId(SENDER.name, "2"))
            await stranger.send(an_open(inbound.ticket).encode())
            refusal = await expect(stranger, Kind.REFUSE)
            assert refusal.reason is TransferFailure.UNKNOWN_TICKET
            raw = await enter(harness, receiver, inbound)
            # Now the ticket is in use; its name alone is still worth nothing to others.
            for frame in (a_piece(inbound.ticket, 0, GOOD), a_done(inbound.ticket, GOOD)):
                await stranger.send(frame.encode(), GOOD if frame.kind is Kind.PIECE else ())
                refusal = await expect(stranger, Kind.REFUSE)
                assert refusal.reason is TransferFailure.UNKNOWN_TICKET
            await _complete(receiver, raw, inbound)
            await stranger.hang_up()

    async def test_a_ticket_is_presented_once(self, harness: Harness) -> None:
        async with running(harness, "receiver") as [receiver]:
            inbound = await receiver.open(SENDER, range(4))
            raw = await enter(harness, receiver, inbound)
            second = await greet(harness, receiver, SENDER)
            await second.send(an_open(inbound.ticket).encode())
            assert (await expect(second, Kind.REFUSE)).reason is TransferFailure.DUPLICATE
            await _complete(receiver, raw, inbound)
            await second.hang_up()

    async def test_who_does_not_greet_is_not_served(self, harness: Harness) -> None:
        async with running(harness, "receiver") as [receiver]:
            inbound = await receiver.open(SENDER, range(4))
            raw = await harness.raw(receiver.connector.offer().address)
            await raw.send(an_open(inbound.ticket).encode())
            assert (await expect(raw, Kind.REFUSE)).reason is TransferFailure.UNKNOWN_TICKET
            await raw.hang_up()

    async def test_a_greeting_with_another_layout_is_refused(self, harness: Harness) -> None:
        async with running(harness, "receiver") as [receiver]:
            raw = await greet(harness, receiver, SENDER, layout=7)
            assert (await expect(raw, Kind.REFUSE)).reason is TransferFailure.LAYOUT_MISMATCH
            await raw.hang_up()

    async def test_a_greeting_to_an_earlier_life_is_refused(self, harness: Harness) -> None:
        async with running(harness, "receiver") as [receiver]:
            earlier = Worker(WorkerId("receiver", "0"), receiver.memory, receiver.connector)
            raw = await greet(harness, earlier, SENDER)
            assert (await expect(raw, Kind.REFUSE)).reason is TransferFailure.UNKNOWN_TICKET
            await raw.hang_up()

    async def test_a_lost_connection_fails_its_transfers(self, harness: Harness) -> None:
        async with running(harness, "receiver") as [receiver]:
            inbound = await receiver.open(SENDER, range(4))
            raw = await enter(harness, receiver, inbound)
            await raw.send(a_piece(inbound.ticket, 0, GOOD[:1]).encode(), GOOD[:1])
            await expect(raw, Kind.ACK)
            await raw.hang_up()
            await _fails(inbound.wait(5), TransferFailure.PEER_LOST)


async def _complete(receiver: Worker, raw: RawPeer, inbound: object) -> None:
    await raw.send(a_piece(inbound.ticket, 0, GOOD).encode(), GOOD)
    await raw.send(a_done(inbound.ticket, GOOD).encode())
    await inbound.wait(5)
    assert receiver.blocks[:4].tobytes() == b"".join(GOOD)
    await raw.hang_up()


async def _fails(awaitable: object, reason: TransferFailure) -> None:
    with pytest.raises(TransferError) as error:
        await awaitable
    assert error.value.reason is reason
