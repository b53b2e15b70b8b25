"""The connector suite on `zmq` with encryption, and who is not let in."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import zmq
import zmq.asyncio

from shared.connector.base import Offer
from shared.connector.protocol.checksum import layout_fingerprint
from shared.connector.protocol.frame import decode
from shared.connector.protocol.greeting import hello, parties
from shared.connector.zeromq.connector import ZmqConnector
from shared.connector.zeromq.curve import Curve
from shared.connector.zeromq.sockets import KEY_MARK, PlainText
from shared.errors import TransferError, TransferFailure
from shared.identity import WorkerId
from tests.integration.connector.harnesses import ZmqHarness, ZmqRaw
from tests.suites.connector.behaviour import BehaviourSuite
from tests.suites.connector.harness import BLOCK_BYTES, LAYOUT, NUM_BLOCKS, an_open, running
from tests.suites.connector.stress import StressSuite

if TYPE_CHECKING:
    from shared.connector.protocol.limits import TransferLimits
    from shared.connector.protocol.transport import Transport
    from shared.kv.memory import KVMemory
    from tests.suites.connector.harness import Worker

SILENCE_S = 0.5


class CurveHarness(ZmqHarness):
    """Everybody that it makes has met everybody else."""

    def __init__(self) -> None:
        super().__init__()
        self._made: list[ZmqConnector] = []

    def make(self, worker: WorkerId, memory: KVMemory, limits: TransferLimits) -> Transport:
        made = Acquainted(
            worker=worker, memory=memory, heartbeat_s=self.heartbeat_s, limits=limits,
            security=Curve(),
        )  # fmt: skip
        made.others = self._made
        self._made.append(made)
        return made

    async def raw(self, address: str) -> ZmqRaw:
        return CurveRaw(address, self._made)


class Acquainted(ZmqConnector):
    others: list[ZmqConnector]

    async def _listen(self) -> None:
        await super()._listen()
        for other in self.others:
            if other is not self and other._address:
                other.meet(self._worker, self.offer())
                self.meet(other._worker, other.offer())


class CurveRaw(ZmqRaw):
    """Has a key of its own, and has been met under whatever name it greets with."""

    def __init__(self, address: str, made: list[ZmqConnector]) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._curve = Curve()
        endpoint = self._curve.secure_client(self._socket, address)
        self._receiver = next(one for one in made if one._address == address)
        self._endpoint: str | None = endpoint

    async def send(self, data: bytes, payload: object = ()) -> None:
        if self._endpoint is not None:
            try:
                name = parties(decode(data))[0]
            except TransferError:
                name = WorkerId("sender", "1")
            offer = Offer(connector="zmq", address=self._curve.advertise("tcp://x:1"), params={})
            self._receiver.meet(name, offer)
            self._socket.connect(self._endpoint)
            self._endpoint = None
        await super().send(data, payload)


@pytest.fixture
def harness() -> CurveHarness:
    return CurveHarness()


class TestCurveBehaviour(BehaviourSuite):
    pass


class TestCurveStress(StressSuite):
    pass


async def complete(sender: Worker, receiver: Worker) -> None:
    inbound = await receiver.open(sender.id, range(4))
    outbound = await sender.connector.connect(inbound.ticket, 5)
    await outbound.push(0, [4, 5, 6, 7])
    await outbound.finish(5)
    await inbound.wait(5)
    assert (receiver.blocks[:4] == sender.blocks[4:8]).all()


async def say_hello(raw: ZmqRaw, sender: WorkerId, receiver: Worker) -> None:
    greeting = hello(
        sender=sender,
        receiver=receiver.id,
        layout=layout_fingerprint(LAYOUT),
        num_blocks=NUM_BLOCKS,
        num_bytes=NUM_BLOCKS * BLOCK_BYTES,
    )
    await raw.send(greeting.encode())


async def hears_nothing(raw: ZmqRaw) -> bool:
    try:
        async with asyncio.timeout(SILENCE_S):
            await raw.receive()
    except TimeoutError:
        return True
    return False


def plain_address(worker: Worker) -> str:
    return worker.connector.offer().address.partition(KEY_MARK)[0]


async def test_who_has_no_key_gets_nothing(harness: CurveHarness) -> None:
    """It knows the ticket, the sender's name, and the address."""
    async with running(harness, "one", "two") as [sender, receiver]:
        inbound = await receiver.open(sender.id, range(4))
        raw = ZmqRaw(plain_address(receiver))
        await say_hello(raw, sender.id, receiver)
        await raw.send(an_open(inbound.ticket).encode())
        assert await hears_nothing(raw)
        await raw.hang_up()
        await inbound.abort()
        await complete(sender, receiver)


async def test_a_key_that_was_not_met_gets_nothing(harness: CurveHarness) -> None:
    async with running(harness, "one", "two") as [sender, receiver]:
        inbound = await receiver.open(sender.id, range(4))
        raw = ZmqRaw.__new__(ZmqRaw)
        raw._context = zmq.asyncio.Context()
        raw._socket = raw._context.socket(zmq.DEALER)
        address = receiver.connector.offer().address
        raw._socket.connect(Curve().secure_client(raw._socket, address))
        await say_hello(raw, sender.id, receiver)
        await raw.send(an_open(inbound.ticket).encode())
        assert await hears_nothing(raw)
        await raw.hang_up()
        await inbound.abort()
        await complete(sender, receiver)


async def test_another_worker_cannot_use_a_stolen_ticket(harness: CurveHarness) -> None:
    """It belongs to the cluster and has its own key, and says to be whom the ticket names."""
    async with running(harness, "one", "two", "thief") as [one, two, thief]:
        inbound = await two.open(one.id, range(4))
        stolen = replace(inbound.ticket, sender=thief.id)
        with pytest.raises(TransferError):
            await thief.connector.connect(stolen, 5)
        thief.connector._sender._worker = one.id
        thief.connector._sender._links.clear()
        with pytest.raises(TransferError):
            await thief.connector.connect(inbound.ticket, 2)
        assert two.connector.refusals[TransferFailure.UNKNOWN_TICKET] >= 1
        assert inbound.num_blocks_received == 0
        outbound = await one.connector.connect(inbound.ticket, 5)
        await outbound.push(0, [0, 1, 2, 3])
        await outbound.finish(5)
        await inbound.wait(5)


async def test_a_receiver_with_another_key_is_not_sent_anything(harness: CurveHarness) -> None:
    """Somebody else has taken the address of the worker that made the offer."""
    async with running(harness, "one", "two") as [sender, receiver]:
        inbound = await receiver.open(sender.id, range(4))
        other = Curve().advertise(plain_address(receiver))
        with pytest.raises(TransferError):
            await sender.connector.connect(replace(inbound.ticket, address=other), 2)
        await inbound.abort()


async def test_a_new_incarnation_takes_the_place_of_the_one_before(harness: CurveHarness) -> None:
    async with running(harness, "one", "two") as [sender, receiver]:
        await complete(sender, receiver)
        newer = WorkerId(sender.id.name, "newer")
        address = Curve().advertise("tcp://127.0.0.1:1")
        receiver.connector.meet(newer, Offer(connector="zmq", address=address, params={}))
        inbound = await receiver.open(sender.id, range(4))
        with pytest.raises(TransferError):
            await sender.connector.connect(inbound.ticket, 2)
        await inbound.abort()


async def test_only_who_encrypts_as_we_do_is_reachable(harness: CurveHarness) -> None:
    async with running(harness, "one", "two") as [sender, receiver]:
        offer = receiver.connector.offer()
        assert await sender.connector.can_reach(offer)
        assert not await sender.connector.can_reach(replace(offer, address=plain_address(receiver)))
        assert not await sender.connector.can_reach(replace(offer, address=offer.address[:-1]))
        assert not PlainText().can_reach(offer.address)


async def test_the_bytes_on_the_wire_are_not_those_of_the_blocks(harness: CurveHarness) -> None:
    seen = {}
    for kind in (harness, ZmqHarness()):
        async with running(kind, "one", "two") as [one, two]:
            one.blocks[:8] = 0x5A
            endpoint, mark, key = two.connector.offer().address.partition(KEY_MARK)
            port = int(endpoint.rpartition(":")[2])
            proxy = Wiretap(port)
            await proxy.start()
            inbound = await two.open(one.id, range(4))
            through = f"tcp://127.0.0.1:{proxy.port}{mark}{key}"
            outbound = await one.connector.connect(replace(inbound.ticket, address=through), 5)
            await outbound.push(0, [0, 1, 2, 3])
            await outbound.finish(5)
            await inbound.wait(5)
            assert (two.blocks[:4] == 0x5A).all()
            seen[type(kind)] = bytes(proxy.heard)
            await outbound.abort()
            await proxy.close()
    pattern = bytes([0x5A]) * 64
    assert pattern in seen[ZmqHarness]
    assert pattern not in seen[CurveHarness]


class Wiretap:
    """Forwards to a port of this machine, and keeps what the connecting side sends."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.heard = bytearray()
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers += [writer, back]
        for source, sink, keep in ((reader, back, True), (there, writer, False)):
            self._tasks.add(asyncio.create_task(self._pump(source, sink, keep=keep)))

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, keep: bool
    ) -> None:
        while data := await source.read(1 << 16):
            if keep:
                self.heard += data
            sink.write(data)
