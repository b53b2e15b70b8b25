"""What only connectors of another process have: a control connection, its loss, and its keys."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import zmq
import zmq.asyncio

from shared.address import join_address
from shared.connector.registry import ConnectorSettings
from shared.connector.remote.address import EndpointAddress
from shared.connector.remote.connector import RemoteConnector
from shared.connector.remote.keys import TokenKeys
from shared.connector.remote.line import Line
from shared.connector.remote.serve import EndpointSettings, serve_endpoint
from shared.connector.remote.server import EndpointServer
from shared.connector.remote.wire import Abort, Call, encode
from shared.connector.zeromq.sockets import close
from shared.errors import ConfigError, InternalError, TransferError, TransferFailure
from shared.identity import WorkerId
from shared.kv.memory import KVMemory
from tests.fakes.servers.loopback import LOOPBACK6
from tests.integration.connector.remote.harness import RemoteHarness, Served
from tests.suites.connector.behaviour import SOURCES, TARGETS, fails
from tests.suites.connector.harness import (
    BLOCK_BYTES,
    LAYOUT,
    LIMITS,
    NUM_BLOCKS,
    SENTINEL,
    TOKEN,
    Worker,
    running,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from shared.errors import RankError

OTHER = b"another secret, just as long"


@pytest.fixture
def harness(tmp_path: Path) -> RemoteHarness:
    return RemoteHarness("zmq", tmp_path, threads=False)


@asynccontextmanager
async def an_endpoint(host: str = "127.0.0.1") -> AsyncIterator[EndpointServer]:
    """A server without a client."""
    memory = KVMemory(LAYOUT, NUM_BLOCKS)
    settings = ConnectorSettings(endpoint=f"tcp://{join_address(host, 0)}")
    server = EndpointServer(memory, settings, rank=3, token=TOKEN)
    await server.start()
    try:
        yield server
    finally:
        await server.close()
        memory.close()


@asynccontextmanager
async def a_client(address: str, token: bytes = TOKEN) -> AsyncIterator[RemoteConnector]:
    """A connector that is not started."""
    at = EndpointAddress(rank=3, address=address, token=token, timeout_s=6.0)
    lost: list[RankError] = []
    line = Line(at, on_lost=lost.append)
    await line.open()
    settings = ConnectorSettings(limits=LIMITS, heartbeat_s=0.1)
    connector = RemoteConnector(line, "zmq", worker=WorkerId("w.3", "1"), settings=settings)
    try:
        yield connector
    finally:
        await connector.close()
        await line.close()


def served(worker: Worker) -> Served:
    assert isinstance(worker.connector, Served)
    return worker.connector


async def begun(sender: Worker, receiver: Worker) -> tuple[object, object]:
    """A transfer of which three blocks have come."""
    inbound = await receiver.open(sender.id, TARGETS)
    outbound = await sender.connector.connect(inbound.ticket, 5)
    await outbound.push(0, SOURCES[:3])
    async with asyncio.timeout(5):
        while inbound.num_blocks_received < 3:  # noqa: ASYNC110 it is told
            await asyncio.sleep(0.01)
    return inbound, outbound


async def test_only_the_token_opens_an_endpoint() -> None:
    async with an_endpoint() as server:
        async with a_client(server.address, OTHER) as stranger:
            with pytest.raises(ConfigError, match="rank 3 at tcp://"):
                await stranger.start()
        raw = zmq.asyncio.Context()
        socket = raw.socket(zmq.DEALER)
        socket.connect(server.address)
        await socket.send(b"no key")
        known = TokenKeys(TOKEN, "client")
        known._public, known._secret = zmq.curve_keypair()
        other = raw.socket(zmq.DEALER)
        other.connect(known.secure_client(other, server.address))
        await other.send(encode(Call(1, Abort(1))))
        assert not await other.poll(300)
        async with a_client(server.address) as client:
            await client.start()
            assert (await client.can_reach(client.offer())) is True
        other.close(0)
        socket.close(0)
        raw.term()
    with pytest.raises(ConfigError, match="16 bytes"):
        TokenKeys(b"short", "server")


@pytest.mark.parametrize("host", ["127.0.0.1", LOOPBACK6])
async def test_one_client_for_the_whole_life(host: str) -> None:
    async with an_endpoint(host) as server:
        async with a_client(server.address) as first:
            await first.start()
            async with a_client(server.address) as second:
                with pytest.raises(ConfigError, match="another client is served"):
                    await second.start()
            assert await first.can_reach(first.offer())
        async with a_client(server.address) as late:
            with pytest.raises(ConfigError, match="of no more use"):
                await late.start()


async def test_without_an_endpoint_the_start_fails_by_name() -> None:
    for _ in range(6):  # what stays of one on this loop must not deafen the next
        async with an_endpoint() as server:
            address = server.address
        async with a_client(address) as client:
            with pytest.raises(ConfigError, match=r"rank 3 at tcp://.* CLOSED"):
                await client.start()
            with pytest.raises(InternalError, match="not started"):
                client.offer()


async def test_what_the_server_cannot_start_is_the_settings_fault() -> None:
    async with an_endpoint() as server, a_client(server.address) as client:
        client._settings = replace(client._settings, endpoint=server.address)
        with pytest.raises(ConfigError, match=f"rank 3 .*endpoint {server.address}"):
            await client.start()
    memory = KVMemory(LAYOUT, 1)
    for host, token, what in (
        ("192.0.2.1", TOKEN, "cannot listen"),
        ("127.0.0.1", b"", "token"),
        ("0.0.0.0", TOKEN, "advertised host"),
    ):
        with pytest.raises(ConfigError, match=what):
            serve_endpoint(memory, EndpointSettings(rank=3, token=token, host=host))
    memory.close()


@pytest.mark.parametrize("how", ["cut", "garbage"])
async def test_a_lost_client_ends_every_transfer(harness: RemoteHarness, how: str) -> None:
    """Its connection is closed without a word, or it sends what is no message."""
    async with running(harness, "one", "two") as [one, two]:
        inbound, outbound = await begun(one, two)
        coming, _ = await begun(two, one)
        lost = served(two)
        if how == "cut":
            close(lost.line._socket, lost.line._monitor)
        else:
            await lost.line._socket.send(b"\x93no message")
        await fails(outbound.finish(5), TransferFailure.INCOMPLETE, TransferFailure.ABORTED)
        await fails(coming.wait(5), TransferFailure.ABORTED, TransferFailure.PEER_LOST)
        await lost.server._ending
        assert not lost.server._acts._connectors
        two.blocks[:] = SENTINEL
        await asyncio.sleep(0.01)
        assert (two.blocks == SENTINEL).all()
        await outbound.abort()
        lost.line._lose("cut by the test")
        await fails(inbound.wait(5), TransferFailure.PEER_LOST)


async def test_a_lost_server_ends_every_act_by_name(harness: RemoteHarness) -> None:
    async with running(harness, "one", "two") as [one, two]:
        inbound, outbound = await begun(one, two)
        gone = served(one)
        acts = [
            asyncio.create_task(act)
            for act in (two.connector.can_reach(gone.offer()), outbound.finish(30))
        ]
        offer = gone.offer()
        await gone.server.close()
        ended = await asyncio.gather(*acts, return_exceptions=True)
        assert ended[0] is True
        for act in (
            outbound.push(3, SOURCES[3:]),
            gone.remote.open(request_id="r", sender=two.id, blocks=[1]),
            gone.remote.connect(inbound.ticket, 5),
        ):
            with pytest.raises(TransferError, match="rank 1") as error:
                await act
            assert error.value.reason is TransferFailure.PEER_LOST
        assert not await gone.remote.can_reach(offer)
        gone.remote.meet(two.id, offer)
        await outbound.abort()
        assert [error.rank for error in gone.lost] == [1]
        await fails(inbound.wait(5), TransferFailure.ABORTED, TransferFailure.PEER_LOST)


async def test_a_server_whose_loop_stands_is_lost() -> None:
    """Its process answers heartbeats."""
    memory = KVMemory(LAYOUT, NUM_BLOCKS)
    endpoint = serve_endpoint(memory, EndpointSettings(rank=3, token=TOKEN, host="127.0.0.1"))
    go_on = threading.Event()
    async with a_client(endpoint.address.address) as client:
        await client.start()
        client._line.timeout_s = 0.2
        endpoint._loop.call_soon_threadsafe(go_on.wait, 10)
        with pytest.raises(TransferError, match=r"rank 3 .* said nothing"):
            await client._line.call(Abort(1), None)
        go_on.set()
    endpoint.close()
    endpoint.close()
    memory.close()


async def test_a_cancelled_wait_returns_when_the_server_has_stopped(
    harness: RemoteHarness,
) -> None:
    """So do a cancelled `abort`, and one that is cancelled again."""
    async with running(harness, "one", "two") as [one, two]:
        inbound, outbound = await begun(one, two)
        (there,) = two.connector._receiver._open.values()
        ending, go_on = asyncio.Event(), asyncio.Event()
        real = there.wait

        async def slow(timeout_s: float) -> object:
            try:
                return await real(timeout_s)
            finally:
                ending.set()
                await go_on.wait()

        there.wait = slow
        waiting = asyncio.create_task(inbound.wait(5))
        await asyncio.sleep(0.02)
        waiting.cancel()
        await ending.wait()
        waiting.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        go_on.set()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        there.wait = real
        # An end is not cancelled there: the blocks would be written to for ever.
        go_on.clear()
        end = there.abort

        async def slow_abort() -> None:
            await go_on.wait()
            await end()

        there.abort = slow_abort
        aborting = asyncio.create_task(inbound.abort())
        await asyncio.sleep(0.02)
        aborting.cancel()
        await asyncio.sleep(0.02)
        assert not aborting.done()
        go_on.set()
        await asyncio.wait([aborting])
        assert aborting.cancelled()
        assert not two.connector._receiver._open
        await fails(inbound.wait(5), TransferFailure.ABORTED)
        await outbound.abort()


async def test_a_cancelled_connect_leaves_nothing(harness: RemoteHarness) -> None:
    """Wherever it is by then: its answer may be on its way."""
    async with running(harness, "one", "two") as [one, two]:
        for num_turns in range(0, 60, 4):
            inbound = await two.open(one.id, [num_turns % NUM_BLOCKS])
            connecting = asyncio.create_task(one.connector.connect(inbound.ticket, 5))
            for _ in range(num_turns):
                await asyncio.sleep(0)
            connecting.cancel()
            await asyncio.wait([connecting])
            if not connecting.cancelled():
                await connecting.result().abort()
            assert not served(one).server._acts._outbound
            await inbound.abort()
        assert not served(two).server._acts._inbound
        assert not served(two).remote._open | served(one).remote._open


async def test_refusals_and_progress_are_told(harness: RemoteHarness) -> None:
    async with running(harness, "one", "two", "third") as [one, two, third]:
        inbound, outbound = await begun(one, two)
        stolen = third.connector.connect(replace(inbound.ticket, sender=third.id), 5)
        await fails(stolen, TransferFailure.UNKNOWN_TICKET)
        async with asyncio.timeout(5):
            while not two.connector.refusals:  # noqa: ASYNC110 it is told
                await asyncio.sleep(0.01)
        assert two.connector.refusals == {TransferFailure.UNKNOWN_TICKET: 1}
        await outbound.push(3, SOURCES[3:])
        assert await outbound.finish(5) == (await inbound.wait(5)).digest
        assert outbound.num_wire_bytes == len(SOURCES) * BLOCK_BYTES
        assert outbound.num_pieces == inbound._end.receipt.num_pieces
        await fails(outbound.push(0, [1]), TransferFailure.LATE)
        for worker in (one, two, third):
            acts = served(worker).server._acts
            assert not acts._inbound
            assert not acts._outbound
            assert not served(worker).line._received


async def test_with_keys_of_their_own_whom_they_have_met_may_send(
    harness: RemoteHarness, tmp_path: Path
) -> None:
    encrypted = RemoteHarness("zmq", tmp_path, threads=False)
    encrypted.settings = {"encrypt": True}
    async with running(encrypted, "one", "two") as [one, two]:
        for sender, receiver in ((one, two), (two, one)):
            # Not awaited: what is opened later is opened when it is known.
            receiver.connector.meet(sender.id, sender.connector.offer())
            inbound = await receiver.open(sender.id, TARGETS)
            outbound = await sender.connector.connect(inbound.ticket, 5)
            await outbound.push(0, SOURCES)
            await outbound.finish(5)
            await inbound.wait(5)
            assert (receiver.blocks[TARGETS] == sender.blocks[SOURCES]).all()
    async with running(harness, "plain") as [plain]:
        assert not await plain.connector.can_reach(
            replace(plain.connector.offer(), address="tcp://127.0.0.1:1?curve=" + "0" * 64)
        )
