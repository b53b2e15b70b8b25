"""The connector suite on `nixl`, and what only it can do wrong."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from shared.connector.nixl.connector import NixlConnector
from shared.connector.nixl.lane import Lane, load_nixl
from shared.connector.protocol.frame import Frame, Kind
from shared.connector.zeromq.curve import Curve
from shared.errors import ConfigError, TransferError, TransferFailure
from shared.identity import WorkerId
from shared.kv.memory import KVMemory
from tests.integration.connector.harnesses import NixlHarness
from tests.suites.connector.behaviour import SOURCES, TARGETS, BehaviourSuite
from tests.suites.connector.frames import GOOD, FrameSuite
from tests.suites.connector.harness import (
    BLOCK_BYTES,
    LAYOUT,
    LIMITS,
    SENTINEL,
    a_done,
    a_piece,
    enter,
    expect,
    running,
)
from tests.suites.connector.stress import StressSuite

if TYPE_CHECKING:
    from shared.connector.protocol.limits import TransferLimits

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("nixl") is None, reason="the extra `nixl` is not installed"
)

SENDER = WorkerId("sender", "1")


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    """The library keeps a few descriptors for good once the first agent was made."""
    if importlib.util.find_spec("nixl") is None:
        return
    NixlHarness()
    memory = KVMemory(LAYOUT, 1)
    Lane(memory, lambda _: None).close()
    memory.close()


@pytest.fixture
def harness() -> NixlHarness:
    return NixlHarness()


class TestNixlFrames(FrameSuite):
    pass


class TestNixlBehaviour(BehaviourSuite):
    pass


class TestNixlStress(StressSuite):
    reads_in_order = False

    async def test_abort_waits_for_the_block_that_is_being_copied(
        self, harness: NixlHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Here the sender writes: `abort` waits until it has confirmed that it stopped."""
        async with running(harness, "sender", "receiver") as [sender, receiver]:
            inbound = await receiver.open(sender.id, TARGETS)
            outbound = await sender.connector.connect(inbound.ticket, 5)
            await outbound.push(0, SOURCES[:2])
            await _until(lambda: inbound.num_blocks_received == 2)
            writing, go_on = threading.Event(), threading.Event()
            write = Lane.write

            def held(lane: Lane, *args: object) -> None:
                writing.set()
                assert go_on.wait(5)
                write(lane, *args)

            monkeypatch.setattr(Lane, "write", held)
            await outbound.push(2, SOURCES[2:4])
            await asyncio.to_thread(writing.wait, 5)
            aborting = asyncio.create_task(inbound.abort())
            await asyncio.sleep(0.05)
            assert not aborting.done()
            go_on.set()
            await aborting
            receiver.blocks[:] = SENTINEL
            await outbound.abort()
            assert (receiver.blocks == SENTINEL).all()
            await asyncio.get_running_loop().shutdown_default_executor()


@pytest.mark.parametrize("confirms", [True, False])
async def test_blocks_stay_taken_until_the_sender_confirms_or_is_cut_off(
    harness: NixlHarness, confirms: bool
) -> None:
    limits = replace(LIMITS, release_timeout_s=0.3)
    async with running(harness, "receiver", limits=limits) as [receiver]:
        inbound = await receiver.open(SENDER, range(4))
        raw = await enter(harness, receiver, inbound)
        raw.polite = False
        transfer_id = inbound.ticket.transfer_id
        await raw.send(a_piece(inbound.ticket, 0, GOOD[:1]).encode(), GOOD[:1])
        aborting = asyncio.create_task(inbound.abort())
        await expect(raw, Kind.REFUSE)
        # It has not confirmed, and does write: nobody else may have the blocks.
        await raw.write(transfer_id, 1, GOOD[1:2])
        assert not aborting.done()
        if confirms:
            await raw.send(Frame(kind=Kind.STOPPED, transfer_id=transfer_id).encode())
            await aborting
        else:
            await aborting
            receiver.blocks[:] = SENTINEL
            await raw.write(transfer_id, 2, GOOD[2:3])
            assert raw.last_error
            await asyncio.sleep(0.05)
            assert (receiver.blocks == SENTINEL).all()
        await raw.hang_up()


async def test_a_lost_sender_can_write_no_more(harness: NixlHarness) -> None:
    async with running(harness, "receiver") as [receiver]:
        inbound = await receiver.open(SENDER, range(4))
        raw = await enter(harness, receiver, inbound)
        raw.polite = False
        transfer_id = inbound.ticket.transfer_id
        await raw.send(a_piece(inbound.ticket, 0, GOOD[:1]).encode(), GOOD[:1])
        # Its frames do not come any more, but it is there.
        (peer,) = receiver.connector._sessions
        receiver.connector._lost(peer)
        with pytest.raises(TransferError) as error:
            await inbound.wait(5)
        assert error.value.reason is TransferFailure.PEER_LOST
        receiver.blocks[:] = SENTINEL
        await raw.write(transfer_id, 1, GOOD[1:2])
        assert raw.last_error
        assert (receiver.blocks == SENTINEL).all()
        await raw.hang_up()


async def test_one_that_does_not_confirm_does_others_no_harm(harness: NixlHarness) -> None:
    limits = replace(LIMITS, release_timeout_s=0.2)
    async with running(harness, "sender", "receiver", limits=limits) as [sender, receiver]:
        good = await receiver.open(sender.id, range(8, 16))
        outbound = await sender.connector.connect(good.ticket, 5)
        await outbound.push(0, range(4))
        bad = await receiver.open(SENDER, range(4))
        raw = await enter(harness, receiver, bad)
        raw.polite = False
        await raw.send(a_piece(bad.ticket, 0, GOOD[:1]).encode(), GOOD[:1])
        await bad.abort()
        await outbound.push(4, range(4, 8))
        await outbound.finish(5)
        await good.wait(5)
        assert (receiver.blocks[8:16] == sender.blocks[:8]).all()
        await raw.hang_up()


async def test_a_piece_that_is_announced_and_not_written_is_given_up(
    harness: NixlHarness,
) -> None:
    limits = replace(LIMITS, stall_timeout_s=0.1)
    async with running(harness, "receiver", limits=limits) as [receiver]:
        inbound = await receiver.open(SENDER, range(4))
        raw = await enter(harness, receiver, inbound)
        await raw._socket.send_multipart([a_piece(inbound.ticket, 0, GOOD).encode()])
        await raw._socket.send_multipart([a_done(inbound.ticket, GOOD).encode()])
        with pytest.raises(TransferError) as error:
            await inbound.wait(5)
        assert error.value.reason is TransferFailure.TIMEOUT
        await raw.hang_up()


async def test_bytes_that_are_not_as_announced_are_not_believed(
    harness: NixlHarness,
) -> None:
    async with running(harness, "receiver") as [receiver]:
        inbound = await receiver.open(SENDER, range(4))
        raw = await enter(harness, receiver, inbound)
        await raw.send(a_piece(inbound.ticket, 0, GOOD).encode(), GOOD[::-1])
        with pytest.raises(TransferError) as error:
            await inbound.wait(5)
        assert error.value.reason is TransferFailure.CORRUPT
        assert receiver.connector.refusals == {TransferFailure.CORRUPT: 1}
        await raw.hang_up()


async def test_nothing_is_copied(harness: NixlHarness) -> None:
    async with running(harness, "sender", "receiver") as [sender, receiver]:
        inbound = await receiver.open(sender.id, TARGETS)
        outbound = await sender.connector.connect(inbound.ticket, 5)
        await outbound.push(0, SOURCES)
        await outbound.finish(5)
        receipt = await inbound.wait(5)
        assert receipt.num_bytes == len(TARGETS) * BLOCK_BYTES
        assert receipt.num_copied_bytes == outbound.num_copied_bytes == 0


async def test_the_thread_sleeps_while_nothing_is_under_way(harness: NixlHarness) -> None:
    async with running(harness, "sender", "receiver") as [sender, receiver]:
        inbound = await receiver.open(sender.id, TARGETS)
        outbound = await sender.connector.connect(inbound.ticket, 5)
        await outbound.push(0, SOURCES)
        await outbound.finish(5)
        await inbound.wait(5)
        for worker in (sender, receiver):
            pump = worker.connector._pump
            await _until(lambda pump=pump: not any(lane.is_busy for lane in pump._lanes))


async def test_other_backends_are_out_of_reach(harness: NixlHarness) -> None:
    async with running(harness, "one", "two") as [one, two]:
        offer = two.connector.offer()
        assert await one.connector.can_reach(offer)
        assert not await one.connector.can_reach(replace(offer, params={"backend": "GDS"}))


async def test_without_the_library_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    memory = KVMemory(LAYOUT, 1)
    connector = NixlConnector(worker=SENDER, memory=memory)
    with pytest.raises(ConfigError, match="extra `nixl`"):
        await connector.start()
    await connector.close()
    memory.close()


def test_loading_it_changes_nothing_for_other_loggers() -> None:
    assert logging.raiseExceptions
    load_nixl()
    assert logging.raiseExceptions


def test_two_threads_that_load_it_at_once_change_nothing_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def import_module(name: str) -> object:
        """As nixl's own import does it; the second thread comes while the first is here."""
        logging.raiseExceptions = False
        time.sleep(0.05)
        return object()

    monkeypatch.setattr(importlib, "import_module", import_module)
    threads = [threading.Thread(target=load_nixl) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert logging.raiseExceptions


async def _until(condition: object) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 what is watched has no event
            await asyncio.sleep(0.001)


class EncryptedHarness(NixlHarness):
    def make(self, worker: WorkerId, memory: KVMemory, limits: TransferLimits) -> NixlConnector:
        return NixlConnector(worker=worker, memory=memory, limits=limits, security=Curve())


async def test_with_encryption_only_who_was_met_learns_where_the_blocks_are() -> None:
    async with running(EncryptedHarness(), "sender", "receiver") as [sender, receiver]:
        inbound = await receiver.open(sender.id, TARGETS)
        with pytest.raises(TransferError):
            await sender.connector.connect(inbound.ticket, 2)
        receiver.connector.meet(sender.id, sender.connector.offer())
        outbound = await sender.connector.connect(inbound.ticket, 5)
        await outbound.push(0, SOURCES)
        await outbound.finish(5)
        await inbound.wait(5)
        assert (receiver.blocks[TARGETS] == sender.blocks[SOURCES]).all()
