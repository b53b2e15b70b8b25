"""How a hand-off between groups of ranks behaves, on every connector: all ranks in one process."""

from __future__ import annotations

import asyncio
import itertools
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shared.connector.group.inbound import GroupInbound
from shared.connector.group.outbound import GroupOutbound
from shared.errors import TransferError, TransferFailure
from shared.identity import WorkerId
from shared.kv.group_rules import GroupKind
from shared.kv.hand_off import HandOff, Holder
from shared.kv.layout import KVGroup, KVLayout, StateSection
from shared.kv.split import KVSplit
from tests.fakes.ranks.arenas import SENTINEL, Arenas, Contents, own_heads
from tests.suites.connector.harness import LIMITS, Harness

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from shared.connector.protocol.transport import Transport

SIZES = (1, 2, 3, 4)
HEADS = (1, 2, 3, 4, 8)
#: Sending ranks, receiving ranks, heads: all values of any two columns come together.
SOME = [
    (senders, 1 + (senders + at) % 4, heads) for senders in SIZES for at, heads in enumerate(HEADS)
]
#: All of them: BATON_SPLITS=full.
CASES = list(itertools.product(SIZES, SIZES, HEADS)) if os.environ.get("BATON_SPLITS") else SOME
NUM_TOKENS, BLOCK_SIZE, HEAD_DIM, NUM_LAYERS, NUM_BLOCKS = 22, 4, 8, 3, 24
SECTIONS = (StateSection(2, ((2, 3), (4, 2))), StateSection(1, ((4, 7),)))


def a_layout(num_heads: int, block_size: int = BLOCK_SIZE, dtype: str = "float16") -> KVLayout:
    group = KVGroup(num_layers=NUM_LAYERS, num_kv_heads=num_heads, head_dim=HEAD_DIM)
    return KVLayout.of((group,), block_size=block_size, dtype=dtype)


def every_kind(block_size: int, dtype: str) -> KVLayout:
    """A layout with a group of each kind."""
    latent = KVGroup(num_layers=2, num_kv_heads=1, head_dim=12, kind=GroupKind.LATENT)
    window = KVGroup(num_layers=2, num_kv_heads=3, head_dim=8, kind=GroupKind.WINDOW, window=9)
    full = KVGroup(num_layers=4, num_kv_heads=3, head_dim=4)
    state = KVGroup(
        num_layers=2,
        num_kv_heads=0,
        head_dim=0,
        kind=GroupKind.STATE,
        state_size=sum(section.size for section in SECTIONS),
        sections=SECTIONS,
    )
    return KVLayout.of((full, latent, window, state), block_size=block_size, dtype=dtype)


@dataclass
class Group:
    """A worker of several ranks: memories, connectors, and a sequence's tables."""

    holder: Holder
    arenas: Arenas
    ids: list[WorkerId]
    connectors: list[Transport]
    tables: list[list[int]]


@asynccontextmanager
async def groups(
    harness: Harness, sender: Holder, receiver: Holder
) -> AsyncIterator[tuple[Group, Group]]:
    """Two started groups; the sender's blocks have the contents of a prompt."""
    made = []
    for name, holder in (("sender", sender), ("receiver", receiver)):
        arenas = Arenas(holder, NUM_BLOCKS)
        ids = [WorkerId.born(f"{name}-{rank}") for rank in range(holder.split.size)]
        connectors = [
            harness.make(id_, memory, LIMITS)
            for id_, memory in zip(ids, arenas.memories, strict=True)
        ]
        num = holder.layout.num_blocks(NUM_TOKENS)
        order = np.random.default_rng(len(made)).permutation(NUM_BLOCKS)
        tables = [
            order[at * num : (at + 1) * num].tolist() for at in range(sender.layout.num_groups)
        ]
        made.append(Group(holder, arenas, ids, connectors, tables))
    everything = [range(NUM_TOKENS)] * sender.layout.num_groups
    made[0].arenas.place(Contents.of(sender.layout, NUM_TOKENS), made[0].tables, everything)
    try:
        for group in made:
            await asyncio.gather(*(connector.start() for connector in group.connectors))
        yield made[0], made[1]
    finally:
        for group in made:
            await asyncio.gather(*(connector.close() for connector in group.connectors))
            group.arenas.close()


@dataclass
class Pushed:
    """A hand-off that is under way."""

    hand_off: HandOff
    inbound: GroupInbound
    outbound: GroupOutbound
    moved: tuple[range, ...]


def part(receiver: Group, hand_off: HandOff, moved: tuple[range, ...]) -> list[list[int]]:
    """Return those blocks of the receiver's tables that move."""
    size = hand_off.receiver_units
    tables = zip(receiver.tables, moved, strict=True)
    return [table[units.start // size :] for table, units in tables]


async def begin(sender: Group, receiver: Group, num_slices: int = 1) -> Pushed:
    """Open and connect all transfers."""
    hand_off = HandOff(sender.holder, receiver.holder, num_slices)
    moved = hand_off.moved(0, NUM_TOKENS)
    inbound = await GroupInbound.open(
        hand_off,
        request_id="request-1",
        senders=sender.ids,
        connectors=receiver.connectors,
        tables=part(receiver, hand_off, moved),
        moved=moved,
        num_tokens=NUM_TOKENS,
    )
    outbound = await GroupOutbound.connect(
        hand_off,
        tickets=inbound.tickets,
        connectors=sender.connectors,
        moved=moved,
        num_tokens=NUM_TOKENS,
        timeout_s=10,
    )
    return Pushed(hand_off, inbound, outbound, moved)


async def send_all(sender: Group, outbound: GroupOutbound) -> int:
    """Push every table, and finish."""
    await push_all(sender, outbound)
    return await outbound.finish(20)


async def push_all(sender: Group, outbound: GroupOutbound) -> None:
    """Push every table, in two halves, the later one first, and the other slice by slice."""
    for group, table in enumerate(sender.tables):
        half = len(table) // 2
        await outbound.push(group, half, table[half:])
        for number in range(outbound.num_slices):
            await outbound.push(group, 0, table[:half], range(number, number + 1))


def check_contents(pushed: Pushed, receiver: Group) -> int:
    """The receiver's blocks are those of its own split, and all else untouched; bytes that are."""
    expected = Arenas(receiver.holder, NUM_BLOCKS)
    size = pushed.hand_off.layout.block_size
    tokens = [
        range(units.start * size, min(units.stop * size, NUM_TOKENS)) for units in pushed.moved
    ]
    contents = Contents.of(receiver.holder.layout, NUM_TOKENS)
    expected.place(contents, receiver.tables, tokens)
    num_bytes = 0
    for ours, theirs in zip(expected.memories, receiver.arenas.memories, strict=True):
        assert np.array_equal(ours.blocks, theirs.blocks)
        num_bytes += int((ours.blocks != SENTINEL).sum())
    expected.close()
    return num_bytes


class GroupSuite:
    """Run on every connector by subclasses that provide `harness`."""

    #: Whether the receiver copies what arrives; else the sender writes it.
    copies = True

    async def test_every_pair_of_sizes(self, harness: Harness) -> None:
        """Contents are equal, and the bytes on the wire are those of the formula."""
        for senders, receivers, heads in self.cases():
            layout = a_layout(heads)
            holders = [Holder(layout, KVSplit.of(layout, size)) for size in (senders, receivers)]
            async with groups(harness, *holders) as (sender, receiver):
                pushed = await begin(sender, receiver)
                waiting = asyncio.create_task(pushed.inbound.wait(20))
                digest = await send_all(sender, pushed.outbound)
                receipt = await waiting
                assert receipt.digest == digest
                copied = sum(stream.num_copied_bytes for stream in receipt.streams.values())
                assert copied == receipt.num_bytes * self.copies
                # Two bytes each of keys and values, of every head that a receiver keeps.
                copies = sum(len(own_heads(heads, receivers, rank)) for rank in range(receivers))
                assert copies == max(heads, receivers)
                formula = 2 * NUM_LAYERS * copies * HEAD_DIM * NUM_TOKENS * 2
                assert receipt.num_bytes == formula, (senders, receivers, heads)
                assert check_contents(pushed, receiver) == formula

    def cases(self) -> Sequence[tuple[int, int, int]]:
        """Sending ranks, receiving ranks, heads."""
        return CASES

    async def test_stages_kinds_scales_and_blocks_of_two_sizes(self, harness: Harness) -> None:
        """By slices of layers. There from small blocks into large ones, in 8 bits; and back, also
        between two ranks.
        """
        staged = KVSplit(2, ((1, 0, 2, 1), (3, 2, 0, 1)))
        divided, whole = (KVSplit(size, ((4, 2, 2, 2),)) for size in (3, 1))
        for (*splits, num_slices), (dtype, sizes) in itertools.product(
            ((staged, divided, 2), (whole, whole, 3)), self.formats()
        ):
            layouts = [every_kind(size, dtype) for size in sizes]
            holders = [Holder(layout, split) for layout, split in zip(layouts, splits, strict=True)]
            async with groups(harness, *holders) as (sender, receiver):
                pushed = await begin(sender, receiver, num_slices)
                digest = await send_all(sender, pushed.outbound)
                receipt = await pushed.inbound.wait(20)
                assert receipt.digest == digest
                assert check_contents(pushed, receiver) == receipt.num_bytes

    def formats(self) -> Sequence[tuple[str, tuple[int, int]]]:
        """Numbers of the cache, and both block sizes."""
        return [("int8", (4, 8)), ("float16", (8, 4))]

    async def test_a_flipped_byte_fails_the_whole(self, harness: Harness) -> None:
        """It changes after its checksum was taken, in what one of four ranks sends."""
        layout = a_layout(4)
        holders = [Holder(layout, KVSplit.of(layout, size)) for size in (4, 2)]
        async with groups(harness, *holders) as (sender, receiver):
            pushed = await begin(sender, receiver)
            io = sender.connectors[2]._access
            real = io.checksum

            async def wrong(*args: object) -> int | None:
                checksum = await real(*args)
                return None if checksum is None else checksum ^ 1

            io.checksum = wrong
            real_collect = io.collect

            async def wrong_collect(*args: object) -> tuple[np.ndarray, int | None]:
                copy, checksum = await real_collect(*args)
                copy[3] ^= 1
                return copy, checksum

            io.collect = wrong_collect
            waiting = asyncio.create_task(pushed.inbound.wait(20))
            with pytest.raises(TransferError):
                await send_all(sender, pushed.outbound)
            with pytest.raises(TransferError, match="rank 2 to rank 1") as error:
                await waiting
            assert error.value.reason is TransferFailure.CORRUPT
            await pushed.outbound.abort()
            await _over(pushed, receiver)

    async def test_a_lost_piece_of_one_stream_fails_the_whole(self, harness: Harness) -> None:
        layout = a_layout(2)
        holders = [Holder(layout, KVSplit.of(layout, size)) for size in (2, 4)]
        async with groups(harness, *holders) as (sender, receiver):
            pushed = await begin(sender, receiver)
            waiting = asyncio.create_task(pushed.inbound.wait(20))
            lane = pushed.outbound._lanes[1, 3].transfer
            real, lane._link.wire.send_piece = lane._link.wire.send_piece, lambda *_: None
            with pytest.raises(TransferError):
                await send_all(sender, pushed.outbound)
            lane._link.wire.send_piece = real
            with pytest.raises(TransferError, match="rank 1 to rank 3") as error:
                await waiting
            assert error.value.reason is TransferFailure.INCOMPLETE
            await _over(pushed, receiver)

    async def test_a_rank_that_closes_ends_all_streams(self, harness: Harness) -> None:
        """Either side's: the others stop, and no block is read or written afterwards."""
        layout = a_layout(4)
        holders = [Holder(layout, KVSplit.of(layout, size)) for size in (2, 3)]
        for side in (0, 1):
            async with groups(harness, *holders) as both:
                pushed = await begin(*both)
                await pushed.outbound.push(0, 0, both[0].tables[0][:2])
                waiting = asyncio.create_task(pushed.inbound.wait(20))
                await both[side].connectors[1].close()
                with pytest.raises(TransferError, match="rank"):
                    await waiting
                assert not any(connector._receiver._open for connector in both[1].connectors)
                with pytest.raises(TransferError):
                    await pushed.outbound.finish(20)
                await _over(pushed, both[1])

    async def test_other_splits_and_layouts_are_refused(self, harness: Harness) -> None:
        """A sender that thinks the receiver is of another size moves nothing."""
        layout = a_layout(4)
        two, four = (Holder(layout, KVSplit.of(layout, size)) for size in (2, 4))
        async with groups(harness, two, two) as (sender, receiver):
            hand_off, wrong = HandOff(two, two), HandOff(two, four)
            moved = hand_off.moved(0, NUM_TOKENS)
            inbound = await GroupInbound.open(
                hand_off,
                request_id="request-1",
                senders=sender.ids,
                connectors=receiver.connectors,
                tables=part(receiver, hand_off, moved),
                moved=moved,
                num_tokens=NUM_TOKENS,
            )

            async def connect(tickets: object, num_tokens: int = NUM_TOKENS) -> None:
                await GroupOutbound.connect(
                    hand_off,
                    tickets=tickets,
                    connectors=sender.connectors,
                    moved=moved,
                    num_tokens=num_tokens,
                    timeout_s=10,
                )

            tickets = dict(inbound.tickets)
            with pytest.raises(TransferError, match="tickets for ranks"):
                await connect({(0, 0): tickets[0, 0]})
            assert wrong.pairs != hand_off.pairs
            # The last block has fewer tokens there than here: other bytes of as many blocks.
            with pytest.raises(TransferError) as error:
                await connect(tickets, NUM_TOKENS - 1)
            assert error.value.reason is TransferFailure.LAYOUT_MISMATCH
            await inbound.abort()


async def _over(pushed: Pushed, receiver: Group) -> None:
    """All transfers have ended; nothing is written to the receiver's blocks any more."""
    await pushed.outbound.abort()
    await pushed.inbound.abort()
    assert not any(connector._receiver._open for connector in receiver.connectors)
    before = [memory.blocks.copy() for memory in receiver.arenas.memories]
    await asyncio.sleep(0.01)
    for memory, blocks in zip(receiver.arenas.memories, before, strict=True):
        assert np.array_equal(memory.blocks, blocks)
