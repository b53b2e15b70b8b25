"""How every connector behaves towards those who use it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.errors import TransferError, TransferFailure
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from tests.suites.connector.harness import (
    BLOCK_BYTES,
    LAYOUT,
    LIMITS,
    NUM_BLOCKS,
    SENTINEL,
    Harness,
    Worker,
    running,
)

if TYPE_CHECKING:
    from shared.connector.base import InboundTransfer, OutboundTransfer, Receipt

#: Blocks of the receiver, in no order; the others must stay as they are.
TARGETS = [7, 3, 21, 22, 23, 30, 0, 11]
SOURCES = [5, 6, 7, 1, 31, 30, 2, 16]


@st.composite
def pushes(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Cuts of a transfer into pushes, in any order: (first index, one past the last)."""
    cuts = draw(st.sets(st.integers(1, len(TARGETS) - 1)))
    edges = [0, *sorted(cuts), len(TARGETS)]
    return draw(st.permutations(list(pairwise(edges))))


class BehaviourSuite:
    """Run on every connector by subclasses that provide `harness`."""

    @given(cuts=pushes(), targets=st.permutations(TARGETS))
    @settings(
        # Each opens two connectors, of eight kinds in all.
        max_examples=6,
        deadline=None,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.differing_executors,
        ],
    )
    def test_blocks_arrive_whatever_the_order_and_the_pieces(
        self, harness: Harness, cuts: list[tuple[int, int]], targets: list[int]
    ) -> None:
        async def check() -> None:
            async with running(harness, "sender", "receiver") as [sender, receiver]:
                receiver.blocks[:] = SENTINEL
                inbound = await receiver.open(sender.id, targets)
                outbound = await sender.connector.connect(inbound.ticket, 5)
                for start, end in cuts:
                    await outbound.push(start, SOURCES[start:end])
                digest = await outbound.finish(5)
                receipt = await inbound.wait(5)
                assert receipt.digest == digest
                assert receipt.num_blocks == len(targets) == inbound.num_blocks_received
                assert receipt.num_bytes == len(targets) * BLOCK_BYTES
                assert receipt.num_pieces >= len(cuts)
                assert (receiver.blocks[targets] == sender.blocks[SOURCES]).all()
                _untouched(receiver, targets)

        asyncio.run(check())

    async def test_another_memory_is_filled_in_place_of_its_own(self, harness: Harness) -> None:
        beside = KVMemory(LAYOUT, 5)
        async with running(harness, "sender", "receiver") as [sender, receiver]:

            async def begin(blocks: list[int]) -> InboundTransfer:
                return await receiver.connector.open(
                    request_id="r", sender=sender.id, blocks=blocks, memory=beside
                )

            if not receiver.connector.takes_memory:
                with pytest.raises(ValueError, match="fills no memory but its own"):
                    await begin([0])
                return
            with pytest.raises(ValueError, match="5"):
                await begin([5])
            receiver.blocks[:] = SENTINEL
            for targets in ([4, 0, 2], [1]):
                inbound = await begin(targets)
                outbound = await sender.connector.connect(inbound.ticket, 5)
                await outbound.push(0, SOURCES[: len(targets)])
                await outbound.finish(5)
                await inbound.wait(5)
                assert (beside.blocks[targets] == sender.blocks[SOURCES[: len(targets)]]).all()
            assert not beside.blocks[3].any()
            assert (receiver.blocks == SENTINEL).all()
        beside.close()

    async def test_blocks_larger_than_a_piece_arrive(self, harness: Harness) -> None:
        layout = KVLayout.single(
            num_layers=20, num_kv_heads=8, block_size=16, head_dim=128, dtype="float16"
        )
        limits = replace(LIMITS, window_bytes=2 * layout.block_bytes, piece_bytes=1)
        async with running(
            harness, "sender", "receiver", layout=layout, num_blocks=6, limits=limits
        ) as [sender, receiver]:
            await _transfer(sender, receiver, [5, 3, 4, 0], [1, 2, 3, 4])
            assert (receiver.blocks[[1, 2, 3, 4]] == sender.blocks[[5, 3, 4, 0]]).all()

    async def test_finish_without_everything_is_incomplete_on_both_sides(
        self, harness: Harness
    ) -> None:
        async with running(harness, "sender", "receiver") as [sender, receiver]:
            inbound = await receiver.open(sender.id, TARGETS)
            outbound = await sender.connector.connect(inbound.ticket, 5)
            await outbound.push(0, SOURCES[:7])
            await fails(outbound.finish(5), TransferFailure.INCOMPLETE)
            await fails(inbound.wait(5), TransferFailure.INCOMPLETE)
            await fails(outbound.push(7, SOURCES[7:]), TransferFailure.INCOMPLETE)

    @pytest.mark.parametrize(
        ("first", "reason"),
        [(1, TransferFailure.DUPLICATE), (7, TransferFailure.OUT_OF_RANGE)],
    )
    async def test_a_wrong_push_fails_the_transfer(
        self, harness: Harness, first: int, reason: TransferFailure
    ) -> None:
        async with running(harness, "sender", "receiver") as [sender, receiver]:
            inbound = await receiver.open(sender.id, TARGETS)
            outbound = await sender.connector.connect(inbound.ticket, 5)
            await outbound.push(0, SOURCES[:2])
            await fails(outbound.push(first, SOURCES[:2]), reason)
            await fails(outbound.finish(5), reason)
            await fails(inbound.wait(5), reason)

    async def test_the_receiver_gives_up(self, harness: Harness) -> None:
        async with running(harness, "sender", "receiver") as [sender, receiver]:
            inbound = await receiver.open(sender.id, TARGETS)
            outbound = await sender.connector.connect(inbound.ticket, 5)
            await outbound.push(0, SOURCES[:2])
            await inbound.abort()
            await inbound.abort()
            receiver.blocks[:] = SENTINEL
            await fails(outbound.finish(5), TransferFailure.INCOMPLETE, TransferFailure.ABORTED)
            await fails(outbound.push(2, SOURCES[2:]), *list(TransferFailure))
            await outbound.abort()
            await fails(inbound.wait(5), TransferFailure.ABORTED)
            _untouched(receiver, [])

    async def test_the_sender_gives_up(self, harness: Harness) -> None:
        async with running(harness, "sender", "receiver") as [sender, receiver]:
            inbound = await receiver.open(sender.id, TARGETS)
            outbound = await sender.connector.connect(inbound.ticket, 5)
            await outbound.push(0, SOURCES[:2])
            await outbound.abort()
            await outbound.abort()
            await fails(inbound.wait(5), TransferFailure.ABORTED)
            await fails(outbound.push(2, SOURCES[2:]), TransferFailure.ABORTED)

    async def test_wait_ends_at_its_deadline_and_the_sender_learns(self, harness: Harness) -> None:
        async with running(harness, "sender", "receiver") as [sender, receiver]:
            inbound = await receiver.open(sender.id, TARGETS)
            outbound = await sender.connector.connect(inbound.ticket, 5)
            await fails(inbound.wait(0.01), TransferFailure.TIMEOUT)
            await fails(_send_all(outbound), TransferFailure.TIMEOUT)

    async def test_finish_twice_and_abort_after_it_change_nothing(self, harness: Harness) -> None:
        async with running(harness, "sender", "receiver") as [sender, receiver]:
            inbound = await receiver.open(sender.id, TARGETS)
            outbound = await sender.connector.connect(inbound.ticket, 5)
            await outbound.push(0, SOURCES)
            digest = await outbound.finish(5)
            assert await outbound.finish(5) == digest
            await outbound.abort()
            await inbound.abort()
            assert (await inbound.wait(5)).digest == digest

    async def test_a_ticket_is_for_one_transfer_by_its_sender(self, harness: Harness) -> None:
        async with running(harness, "sender", "receiver", "third") as workers:
            sender, receiver, third = workers
            inbound = await receiver.open(sender.id, TARGETS)
            stolen = third.connector.connect(inbound.ticket, 5)
            await fails(stolen, TransferFailure.UNKNOWN_TICKET)
            forged = replace(inbound.ticket, sender=third.id)
            await fails(third.connector.connect(forged, 5), TransferFailure.UNKNOWN_TICKET)
            outbound = await sender.connector.connect(inbound.ticket, 5)
            again = sender.connector.connect(inbound.ticket, 5)
            await fails(again, TransferFailure.DUPLICATE)
            await outbound.push(0, SOURCES)
            await outbound.finish(5)
            late = sender.connector.connect(inbound.ticket, 5)
            await fails(late, TransferFailure.LATE)
            await inbound.wait(5)

    async def test_other_layouts_and_wrong_blocks_are_refused(self, harness: Harness) -> None:
        async with running(harness, "sender", "receiver") as [sender, receiver]:
            ticket = (await receiver.open(sender.id, TARGETS)).ticket
            other = replace(ticket, layout=replace(ticket.layout, dtype="bfloat16"))
            await fails(sender.connector.connect(other, 5), TransferFailure.LAYOUT_MISMATCH)
            for blocks in ([], [1, 1], [-1], [NUM_BLOCKS]):
                with pytest.raises(ValueError, match="blocks"):
                    await receiver.open(sender.id, blocks)
            outbound = await sender.connector.connect(ticket, 5)
            with pytest.raises(ValueError, match="blocks"):
                await outbound.push(0, [NUM_BLOCKS])

    async def test_nobody_at_the_address(self, harness: Harness) -> None:
        async with running(harness, "sender") as [sender]:
            async with running(harness, "receiver") as [receiver]:
                ticket = (await receiver.open(sender.id, TARGETS)).ticket
                offer = receiver.connector.offer()
                assert await sender.connector.can_reach(offer)
            reasons = (TransferFailure.PEER_LOST, TransferFailure.TIMEOUT)
            await fails(sender.connector.connect(ticket, 5), *reasons)

    async def test_the_receiver_closes(self, harness: Harness) -> None:
        async with running(harness, "sender", "receiver") as [sender, receiver]:
            inbound = await receiver.open(sender.id, TARGETS)
            outbound = await sender.connector.connect(inbound.ticket, 5)
            await receiver.connector.close()
            await fails(inbound.wait(5), TransferFailure.ABORTED)
            reasons = (TransferFailure.ABORTED, TransferFailure.PEER_LOST)
            await fails(_send_all(outbound), *reasons)

    async def test_the_sender_closes(self, harness: Harness) -> None:
        async with running(harness, "sender", "receiver") as [sender, receiver]:
            inbound = await receiver.open(sender.id, TARGETS)
            outbound = await sender.connector.connect(inbound.ticket, 5)
            await outbound.push(0, SOURCES[:3])
            await sender.connector.close()
            await fails(inbound.wait(5), TransferFailure.ABORTED)

    async def test_connections_are_made_again_after_a_loss(self, harness: Harness) -> None:
        async with running(harness, "sender", "receiver") as [sender, receiver]:
            await _transfer(sender, receiver, SOURCES, TARGETS)
            (link,) = sender.connector._sender._links.values()
            link.lose(TransferFailure.PEER_LOST, "cut by the test")
            await _transfer(sender, receiver, SOURCES, TARGETS)

    async def test_both_directions_at_once(self, harness: Harness) -> None:
        async with running(harness, "left", "right") as [left, right]:
            await asyncio.gather(
                _transfer(left, right, range(16), range(16)),
                _transfer(right, left, range(16, 32), range(16, 32)),
            )
            assert (left.blocks == right.blocks).all()


def _untouched(receiver: Worker, targets: list[int]) -> None:
    others = np.setdiff1d(np.arange(NUM_BLOCKS), targets)
    assert (receiver.blocks[others] == SENTINEL).all()


async def _transfer(sender: Worker, receiver: Worker, sources: object, targets: object) -> Receipt:
    inbound = await receiver.open(sender.id, list(targets))
    outbound = await sender.connector.connect(inbound.ticket, 5)
    await outbound.push(0, list(sources))
    await outbound.finish(5)
    return await inbound.wait(5)


async def _send_all(outbound: OutboundTransfer) -> None:
    for index, source in enumerate(SOURCES):
        await outbound.push(index, [source])
    await outbound.finish(5)


async def fails(awaitable: object, *reasons: TransferFailure) -> None:
    with pytest.raises(TransferError) as error:
        await awaitable
    assert error.value.reason in reasons
