"""Cancellation, back-pressure and crowds: what every connector must survive."""

from __future__ import annotations

import asyncio
import random
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from shared.connector.protocol import block_io
from shared.connector.protocol.block_io import BlockAccess
from shared.errors import TransferError, TransferFailure
from shared.kv.layout import KVLayout
from tests.suites.connector.harness import (
    BLOCK_BYTES,
    LIMITS,
    SENTINEL,
    Harness,
    Worker,
    running,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from shared.connector.base import InboundTransfer, OutboundTransfer

#: Large enough that a single block is copied by a thread.
LARGE = KVLayout.single(num_layers=24, num_kv_heads=8, block_size=16, head_dim=128, dtype="float16")
LARGE_LIMITS = replace(LIMITS, window_bytes=2 * LARGE.block_bytes)


class Gate:
    """Holds every write of a receiver until it is opened, and watches the sender meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, sender: Worker) -> None:
        self.opened = asyncio.Event()
        self.reached = asyncio.Event()
        self.max_outstanding_bytes = 0
        self._sender = sender
        self._write = BlockAccess.write
        gate = self

        async def held(io: BlockAccess, *args: object) -> object:
            return await gate.held(io, *args)

        monkeypatch.setattr(BlockAccess, "write", held)

    async def held(self, io: BlockAccess, *args: object) -> object:
        self.reached.set()
        await self.opened.wait()
        self._look()
        return await self._write(io, *args)

    def _look(self) -> None:
        for link in self._sender.connector._sender._links.values():
            outstanding = link.credits.outstanding_bytes
            self.max_outstanding_bytes = max(self.max_outstanding_bytes, outstanding)


class StressSuite:
    """Run on every connector by subclasses that provide `harness`."""

    #: Whether a receiver has read all pieces when it reads that the sender gives up. Where threads
    #: hash the pieces, either may be first.
    reads_in_order = True

    @pytest.mark.parametrize("window_blocks", [1, 2, 5])
    async def test_a_slow_receiver_is_never_sent_more_than_its_window(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch, window_blocks: int
    ) -> None:
        window_bytes = window_blocks * BLOCK_BYTES
        limits = replace(LIMITS, window_bytes=window_bytes)
        async with running(harness, "sender", "receiver", limits=limits) as [sender, receiver]:
            inbound = await receiver.open(sender.id, range(16))
            outbound = await sender.connector.connect(inbound.ticket, 5)
            gate = Gate(monkeypatch, sender)
            pushing = asyncio.create_task(outbound.push(0, range(16)))
            await gate.reached.wait()
            assert not pushing.done()
            gate.opened.set()
            await pushing
            await outbound.finish(5)
            await inbound.wait(5)
            assert 0 < gate.max_outstanding_bytes <= window_bytes
            assert (receiver.blocks[:16] == sender.blocks[:16]).all()

    async def test_crowds_in_a_tiny_window_do_not_block_each_other(self, harness: Harness) -> None:
        limits = replace(LIMITS, window_bytes=BLOCK_BYTES)
        async with running(harness, "sender", "receiver", limits=limits) as [sender, receiver]:
            await asyncio.gather(
                *(_transfer(sender, receiver, range(i, i + 4)) for i in range(0, 32, 4))
            )
            assert (receiver.blocks == sender.blocks).all()

    async def test_a_receiver_that_takes_nothing_is_given_up(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limits = replace(
            LIMITS, window_bytes=BLOCK_BYTES, stall_timeout_s=0.05, release_timeout_s=0.05
        )
        async with running(harness, "sender", "receiver", limits=limits) as [sender, receiver]:
            inbound = await receiver.open(sender.id, range(16))
            outbound = await sender.connector.connect(inbound.ticket, 5)
            gate = Gate(monkeypatch, sender)
            with pytest.raises(TransferError) as error:
                await outbound.push(0, range(16))
            assert error.value.reason is TransferFailure.TIMEOUT
            await outbound.abort()
            gate.opened.set()
            with pytest.raises(TransferError):
                await inbound.wait(5)

    async def test_push_is_cancelled(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limits = replace(LIMITS, window_bytes=2 * BLOCK_BYTES)
        async with running(harness, "sender", "receiver", limits=limits) as [sender, receiver]:
            inbound = await receiver.open(sender.id, range(16))
            outbound = await sender.connector.connect(inbound.ticket, 5)
            gate = Gate(monkeypatch, sender)
            pushing = asyncio.create_task(outbound.push(0, range(16)))
            await gate.reached.wait()
            await _cancel(pushing)
            gate.opened.set()
            await outbound.abort()
            await _ends(inbound, TransferFailure.ABORTED)
            await _transfer(sender, receiver, range(16))

    async def test_finish_is_cancelled(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with running(harness, "sender", "receiver") as [sender, receiver]:
            inbound = await receiver.open(sender.id, range(3))
            outbound = await sender.connector.connect(inbound.ticket, 5)
            gate = Gate(monkeypatch, sender)
            await outbound.push(0, range(3))
            finishing = asyncio.create_task(outbound.finish(5))
            await asyncio.sleep(0)  # it says that this was all
            await gate.reached.wait()
            await _cancel(finishing)
            gate.opened.set()
            await outbound.abort()
            # The receiver may have had everything by then: it decides.
            try:
                receipt = await inbound.wait(5)
                assert receipt.num_blocks == 3
            except TransferError as error:
                assert error.reason is TransferFailure.ABORTED  # noqa: PT017 it may not come
                assert not self.reads_in_order
            await _transfer(sender, receiver, range(16))

    async def test_wait_is_cancelled(self, harness: Harness) -> None:
        async with running(harness, "sender", "receiver") as [sender, receiver]:
            inbound = await receiver.open(sender.id, range(16))
            waiting = asyncio.create_task(inbound.wait(5))
            outbound = await sender.connector.connect(inbound.ticket, 5)
            await outbound.push(0, range(3))
            await _cancel(waiting)
            await inbound.abort()
            receiver.blocks[:] = SENTINEL
            with pytest.raises(TransferError):
                await _send(outbound, range(16), 3)
            assert (receiver.blocks == SENTINEL).all()

    async def test_connect_is_cancelled(self, harness: Harness) -> None:
        async with running(harness, "sender", "receiver") as [sender, receiver]:
            first = await receiver.open(sender.id, range(3))
            await _cancel(asyncio.create_task(sender.connector.connect(first.ticket, 5)))
            await _transfer(sender, receiver, range(16))
            # Presented or not, its end is the receiver's to decide.
            await first.abort()

    async def test_abort_waits_for_the_block_that_is_being_copied(
        self, harness: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        copying, go_on = threading.Event(), threading.Event()
        copy = block_io.copy_blocks

        def held(targets: list[np.ndarray], sources: list[np.ndarray]) -> np.ndarray:
            copying.set()
            assert go_on.wait(5)
            return copy(targets, sources)

        monkeypatch.setattr(block_io, "copy_blocks", held)
        async with running(
            harness, "sender", "receiver", layout=LARGE, num_blocks=4, limits=LARGE_LIMITS
        ) as [sender, receiver]:
            inbound = await receiver.open(sender.id, range(4))
            outbound = await sender.connector.connect(inbound.ticket, 5)
            await outbound.push(0, [0])
            await asyncio.to_thread(copying.wait, 5)
            aborting = asyncio.create_task(inbound.abort())
            for _ in range(10):
                await asyncio.sleep(0)
            assert not aborting.done()
            go_on.set()
            await aborting
            receiver.blocks[:] = SENTINEL
            with pytest.raises(TransferError):
                await _send(outbound, range(4), 1)
            assert (receiver.blocks == SENTINEL).all()
            await asyncio.get_running_loop().shutdown_default_executor()

    @pytest.mark.parametrize("seed", range(3))
    async def test_many_transfers_at_once_some_cancelled(self, harness: Harness, seed: int) -> None:
        rng = random.Random(seed)
        limits = replace(LIMITS, window_bytes=6 * BLOCK_BYTES)
        async with running(harness, "one", "two", "receiver", limits=limits, num_blocks=200) as [
            one,
            two,
            receiver,
        ]:
            receiver.blocks[:] = SENTINEL
            order = rng.sample(range(200), 200)
            parts = [order[i : i + 5] for i in range(0, 180, 5)]
            outcomes = await asyncio.gather(
                *(_perhaps(rng, rng.choice((one, two)), receiver, part) for part in parts)
            )
            assert "completed" in outcomes
            assert "aborted" in outcomes
            assert (receiver.blocks[order[180:]] == SENTINEL).all()


async def _perhaps(
    rng: random.Random, sender: Worker, receiver: Worker, blocks: Sequence[int]
) -> str:
    """One transfer that either completes with the right bytes, or ends and writes no more."""
    inbound = await receiver.open(sender.id, blocks)
    sending = asyncio.create_task(_push_one_by_one(rng, sender, inbound, blocks))
    victim = rng.choice(("none", "none", "sender", "receiver"))
    for _ in range(rng.randrange(30)):
        await asyncio.sleep(0)
    if victim == "sender":
        sending.cancel()
        await asyncio.wait([sending])
    if victim == "receiver" or sending.cancelled():
        await inbound.abort()
    try:
        await inbound.wait(5)
    except TransferError:
        await inbound.abort()
        receiver.blocks[list(blocks)] = SENTINEL
        await asyncio.wait([sending])
        assert (receiver.blocks[list(blocks)] == SENTINEL).all()
        return "aborted"
    await asyncio.wait([sending])
    assert (receiver.blocks[list(blocks)] == sender.blocks[list(blocks)]).all()
    return "completed"


async def _push_one_by_one(
    rng: random.Random, sender: Worker, inbound: InboundTransfer, blocks: Sequence[int]
) -> None:
    outbound: OutboundTransfer | None = None
    try:
        outbound = await sender.connector.connect(inbound.ticket, 5)
        for index in rng.sample(range(len(blocks)), len(blocks)):
            await outbound.push(index, [blocks[index]])
        await outbound.finish(5)
    except TransferError:
        if outbound is not None:
            await outbound.abort()
    except asyncio.CancelledError:
        if outbound is None:
            # The receiver was never told of it, or it is told by `connect`.
            await inbound.abort()
        else:
            await outbound.abort()


async def _transfer(sender: Worker, receiver: Worker, blocks: Sequence[int]) -> None:
    inbound = await receiver.open(sender.id, blocks)
    outbound = await sender.connector.connect(inbound.ticket, 5)
    await _send(outbound, blocks, 0)
    await inbound.wait(5)


async def _send(outbound: OutboundTransfer, blocks: Sequence[int], first: int) -> None:
    await outbound.push(first, blocks[first:])
    await outbound.finish(5)


async def _ends(inbound: InboundTransfer, reason: TransferFailure) -> None:
    with pytest.raises(TransferError) as error:
        await inbound.wait(5)
    assert error.value.reason is reason


async def _cancel(task: asyncio.Task[object]) -> None:
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
