"""The connector suite on `zmq`, and what only it can do wrong."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from shared.connector.protocol.frame import MAX_FRAME_BYTES, Kind
from shared.connector.zeromq.connector import ZmqConnector
from shared.errors import ConfigError, TransferError, TransferFailure
from shared.identity import WorkerId
from shared.kv.memory import KVMemory
from tests.integration.connector.harnesses import ZmqHarness
from tests.suites.connector.behaviour import BehaviourSuite
from tests.suites.connector.frames import FrameSuite
from tests.suites.connector.harness import (
    BLOCK_BYTES,
    LAYOUT,
    LIMITS,
    a_piece,
    enter,
    expect,
    running,
    some_blocks,
)
from tests.suites.connector.stress import LARGE, Gate, StressSuite

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def harness() -> ZmqHarness:
    return ZmqHarness()


class TestZmqFrames(FrameSuite):
    pass


class TestZmqBehaviour(BehaviourSuite):
    pass


class TestZmqStress(StressSuite):
    pass


async def test_a_message_over_the_limit_cuts_the_connection(harness: ZmqHarness) -> None:
    sender = WorkerId("sender", "1")
    async with running(harness, "receiver") as [receiver]:
        inbound = await receiver.open(sender, range(4))
        raw = await enter(harness, receiver, inbound)
        payload = [bytes(MAX_FRAME_BYTES + LIMITS.piece_bytes)]
        await raw.send(a_piece(inbound.ticket, 0, payload).encode(), payload)
        with pytest.raises(TransferError) as error:
            await inbound.wait(5)
        assert error.value.reason is TransferFailure.PEER_LOST
        await raw.hang_up()


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ([BLOCK_BYTES, BLOCK_BYTES, 1], TransferFailure.OVERSIZED),
        ([BLOCK_BYTES, BLOCK_BYTES - 1], TransferFailure.INCOMPLETE),
        ([BLOCK_BYTES + 1, BLOCK_BYTES - 1], TransferFailure.CORRUPT),
        ([], TransferFailure.INCOMPLETE),
    ],
)
async def test_a_payload_that_is_not_as_announced_is_refused(
    harness: ZmqHarness, sizes: list[int], reason: TransferFailure
) -> None:
    async with running(harness, "receiver") as [receiver]:
        inbound = await receiver.open(WorkerId("sender", "1"), range(4))
        raw = await enter(harness, receiver, inbound)
        frame = a_piece(inbound.ticket, 0, some_blocks(2))
        await raw.send(frame.encode(), [bytes(size) for size in sizes])
        assert (await expect(raw, Kind.REFUSE)).reason is reason
        with pytest.raises(TransferError):
            await inbound.wait(5)
        await raw.hang_up()


async def test_a_client_that_does_not_speak_zeromq_is_ignored(harness: ZmqHarness) -> None:
    async with running(harness, "one", "two") as [one, two]:
        port = int(two.connector.offer().address.rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 100)
        await writer.drain()
        inbound = await two.open(one.id, [0])
        outbound = await one.connector.connect(inbound.ticket, 5)
        await outbound.push(0, [1])
        await outbound.finish(5)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_unix_sockets_serve_as_well(tmp_path: Path) -> None:
    async with running(ZmqHarness(f"ipc://{tmp_path}/{{name}}"), "one", "two") as [one, two]:
        offer = two.connector.offer()
        assert await one.connector.can_reach(offer)
        assert not await one.connector.can_reach(replace(offer, params={"boot_id": "another"}))
        inbound = await two.open(one.id, [0])
        outbound = await one.connector.connect(inbound.ticket, 5)
        await outbound.push(0, [1])
        await outbound.finish(5)
        await inbound.wait(5)
        assert (two.blocks[0] == one.blocks[1]).all()


async def test_no_source_block_is_referred_to_after_abort(
    harness: ZmqHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = replace(LIMITS, window_bytes=4 * LARGE.block_bytes, release_timeout_s=0.05)
    async with running(
        harness, "sender", "receiver", layout=LARGE, num_blocks=4, limits=limits
    ) as [sender, receiver]:
        inbound = await receiver.open(sender.id, range(4))
        outbound = await sender.connector.connect(inbound.ticket, 5)
        gate = Gate(monkeypatch, sender)
        await outbound.push(0, [0, 2, 1, 3])
        (trackers,) = sender.connector._sender._links.popitem()[1].wire._trackers.values()
        trackers = list(trackers)
        # The receiver is stuck and confirms nothing, so its connection is cut.
        await outbound.abort()
        assert trackers
        assert all(tracker.done for tracker in trackers)
        gate.opened.set()
        with pytest.raises(TransferError):
            await inbound.wait(5)


async def test_blocks_that_could_not_be_sent_are_let_go_of_at_once(harness: ZmqHarness) -> None:
    async with running(harness, "sender", "receiver") as [sender, receiver]:
        inbound = await receiver.open(sender.id, range(4))
        outbound = await sender.connector.connect(inbound.ticket, 5)
        (link,) = sender.connector._sender._links.values()
        wire = link.wire
        # The connection has gone, and the wire has not been told yet.
        wire._socket.disable_monitor()
        wire._socket.disconnect(link.address)
        gc.collect()
        gc.disable()
        try:
            with contextlib.suppress(TransferError):  # the wire may notice in between
                await outbound.push(0, range(4))
            trackers = [*wire._trackers[inbound.ticket.transfer_id]]
            await outbound.abort()
            assert trackers
            assert all(tracker.done for tracker in trackers)
        finally:
            gc.enable()
        assert not wire._trackers
        with pytest.raises(TransferError):
            await inbound.wait(5)


def test_a_wildcard_endpoint_needs_a_host_to_advertise() -> None:
    memory = KVMemory(LAYOUT, 1)
    with pytest.raises(ConfigError, match="advertise_host"):
        ZmqConnector(worker=WorkerId("a", "1"), memory=memory, endpoint="tcp://0.0.0.0:0")
    memory.close()


async def test_the_advertised_host_is_offered_with_the_bound_port() -> None:
    memory = KVMemory(LAYOUT, 1)
    connector = ZmqConnector(
        worker=WorkerId("a", "1"),
        memory=memory,
        endpoint="tcp://0.0.0.0:0",
        advertise_host="worker-7",
    )
    await connector.start()
    host, _, port = connector.offer().address.rpartition(":")
    assert host == "tcp://worker-7"
    assert int(port) > 0
    await connector.close()
    memory.close()


async def test_the_advertised_port_is_offered_instead_of_the_bound_one() -> None:
    memory = KVMemory(LAYOUT, 1)
    connector = ZmqConnector(worker=WorkerId("a", "1"), memory=memory, advertise_port=4711)
    await connector.start()
    assert connector.offer().address == "tcp://127.0.0.1:4711"
    await connector.close()
    memory.close()


async def test_an_endpoint_in_use_is_a_config_error() -> None:
    memory = KVMemory(LAYOUT, 1)
    first = ZmqConnector(worker=WorkerId("a", "1"), memory=memory)
    await first.start()
    second = ZmqConnector(worker=WorkerId("b", "1"), memory=memory, endpoint=first.offer().address)
    with pytest.raises(ConfigError, match="in use"):
        await second.start()
    await second.close()
    await first.close()
    memory.close()
