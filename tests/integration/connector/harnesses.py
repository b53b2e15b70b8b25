"""The connector suite's harness for each connector."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import zmq
import zmq.asyncio

from shared.connector.local import LocalConnector, LocalHub
from shared.connector.nixl.connector import NixlConnector
from shared.connector.nixl.lane import Lane, LaneError
from shared.connector.nixl.pump import Pump, settle
from shared.connector.nixl.session import PIECE_NAME
from shared.connector.protocol.frame import NO_TRANSFER, Frame, Kind, decode
from shared.connector.unix.packets import Packets, connect
from shared.connector.unix.shm import ShmConnector
from shared.connector.zeromq.connector import ZmqConnector
from shared.connector.zeromq.ipc import ZmqIpcConnector
from shared.errors import TransferError
from shared.kv.memory import KVMemory
from tests.suites.connector.harness import LAYOUT, NUM_BLOCKS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shared.connector.protocol.limits import TransferLimits
    from shared.connector.protocol.transport import Transport
    from shared.identity import WorkerId


class LocalHarness:
    def __init__(self) -> None:
        self.hub = LocalHub()

    def make(self, worker: WorkerId, memory: KVMemory, limits: TransferLimits) -> Transport:
        return LocalConnector(worker=worker, memory=memory, hub=self.hub, limits=limits)

    async def raw(self, address: str) -> LocalRaw:
        return LocalRaw(self.hub, address)

    def files(self) -> set[str]:
        return set()


class LocalRaw:
    def __init__(self, hub: LocalHub, address: str) -> None:
        self._answers: asyncio.Queue[Frame] = asyncio.Queue()
        port = hub.ring(address, answer=self._answers.put_nowait, on_close=lambda: None)
        assert port is not None
        self._port = port

    async def send(self, data: bytes, payload: Sequence[bytes] = ()) -> None:
        self._port.send(data, [np.frombuffer(block, np.uint8) for block in payload])

    async def receive(self) -> Frame:
        return await self._answers.get()

    async def hang_up(self) -> None:
        self._port.hang_up()
        await self._port.closed()


class ShmHarness:
    def __init__(self, runtime_dir: Path) -> None:
        self.runtime_dir = runtime_dir

    def make(self, worker: WorkerId, memory: KVMemory, limits: TransferLimits) -> Transport:
        return ShmConnector(
            worker=worker, memory=memory, runtime_dir=self.runtime_dir, limits=limits
        )

    async def raw(self, address: str) -> ShmRaw:
        return ShmRaw(type(self.runtime_dir)(address))

    def files(self) -> set[str]:
        return {path.name for path in self.runtime_dir.glob("*")}


class ShmRaw:
    def __init__(self, path: Path) -> None:
        self._packets = Packets(connect(path))
        self._memory = KVMemory(LAYOUT, NUM_BLOCKS)
        self._greeted = False
        self._next_block = 0

    async def send(self, data: bytes, payload: Sequence[bytes] = ()) -> None:
        fds = () if self._greeted else (self._memory.fd,)
        self._greeted = True
        # A block must not change while the receiver may still read it.
        sources = [(self._next_block + i) % NUM_BLOCKS for i in range(len(payload))]
        self._next_block += len(payload)
        for source, block in zip(sources, payload, strict=True):
            self._memory.blocks[source] = np.frombuffer(block, np.uint8)
        self._packets.send(with_sources(data, sources) if sources else data, fds)

    async def receive(self) -> Frame:
        data, _ = await self._packets.receive()
        return decode(data)

    async def hang_up(self) -> None:
        self._packets.close()
        self._memory.close()


def with_sources(data: bytes, sources: Sequence[int]) -> bytes:
    """The bytes of a piece that names its blocks; bytes that are no frame stay as they are."""
    try:
        frame = decode(data)
    except TransferError:
        return data
    assert frame.kind is Kind.PIECE
    return replace(frame, body=np.asarray(sources, "<u4").tobytes()).encode()


class ZmqHarness:
    def __init__(self, endpoint: str = "tcp://127.0.0.1:0", heartbeat_s: float = 2.0) -> None:
        self.endpoint = endpoint
        self.heartbeat_s = heartbeat_s
        _start_collector()

    def make(self, worker: WorkerId, memory: KVMemory, limits: TransferLimits) -> Transport:
        return ZmqConnector(
            worker=worker,
            memory=memory,
            endpoint=self.endpoint.format(name=worker.name),
            heartbeat_s=self.heartbeat_s,
            limits=limits,
        )

    async def raw(self, address: str) -> ZmqRaw:
        return ZmqRaw(address)

    def files(self) -> set[str]:
        return set()


class ZmqIpcHarness(ZmqHarness):
    def __init__(self, runtime_dir: Path) -> None:
        super().__init__()
        self.runtime_dir = runtime_dir

    def make(self, worker: WorkerId, memory: KVMemory, limits: TransferLimits) -> Transport:
        return ZmqIpcConnector(
            worker=worker, memory=memory, runtime_dir=self.runtime_dir, limits=limits
        )

    def files(self) -> set[str]:
        return {path.name for path in self.runtime_dir.glob("*")}


def _start_collector() -> None:
    """pyzmq's own thread, which lives until the process ends, is none of the connector's."""
    tracker = zmq.Frame(bytes(1 << 20), copy=False, track=True).tracker
    assert tracker is not None
    tracker.wait(5)


class ZmqRaw:
    def __init__(self, address: str) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(address)

    async def send(self, data: bytes, payload: Sequence[bytes] = ()) -> None:
        await self._socket.send_multipart([data, *payload])

    async def receive(self) -> Frame:
        return decode((await self._socket.recv_multipart())[0])

    async def hang_up(self) -> None:
        self._socket.close(0)
        self._context.term()


class NixlHarness(ZmqHarness):
    def __init__(self) -> None:
        super().__init__()
        keep_to_loopback()

    def make(self, worker: WorkerId, memory: KVMemory, limits: TransferLimits) -> Transport:
        return NixlConnector(worker=worker, memory=memory, limits=limits)

    async def raw(self, address: str) -> NixlRaw:
        return NixlRaw(address)


def keep_to_loopback() -> None:
    """UCX would use every network that there is.

    With one there is none to prefer. For each lane UCX asks hundreds of times which the machine's
    table of routes prefers, by reading it.
    """
    os.environ |= {"UCX_NET_DEVICES": "lo", "UCX_TCP_PREFER_DEFAULT": "n"}


class NixlRaw(ZmqRaw):
    """Says what a test wants; writes only while its transfer is open, and says when it stops.

    `polite` ones do that; others go on writing, and confirm nothing.
    """

    polite = True

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._pump = Pump()
        self._memory = KVMemory(LAYOUT, NUM_BLOCKS)
        self._frames: asyncio.Queue[Frame] = asyncio.Queue()
        self._let_in: set[bytes] = set()
        self._places: dict[bytes, list[int]] = {}
        self._lane: Lane | None = None
        self._changed = asyncio.Event()
        self._num_writing = 0
        self._stopping: list[bytes] = []
        self.last_error = ""
        self._reading = asyncio.create_task(self._read())

    async def send(self, data: bytes, payload: Sequence[bytes] = ()) -> None:
        try:
            frame = decode(data)
        except TransferError:
            frame = None
        await self._socket.send_multipart([data])
        if payload and frame is not None and frame.transfer_id in self._let_in:
            await self.write(frame.transfer_id, frame.first_index, payload)

    async def write(self, transfer_id: bytes, first: int, payload: Sequence[bytes]) -> None:
        while transfer_id not in self._places or self._lane is None:
            self._changed.clear()
            await self._changed.wait()
        if self.polite and transfer_id not in self._let_in:
            return
        places = self._places[transfer_id][first : first + len(payload)]
        if len(places) < len(payload):
            return
        for index, block in enumerate(payload):
            self._memory.blocks[index] = np.frombuffer(block, np.uint8)
        ended = asyncio.get_running_loop().create_future()
        name = PIECE_NAME.pack(transfer_id, first)
        tell = lambda error: self._pump.tell(partial(settle, ended, error, None))  # noqa: E731
        write = partial(self._lane.write, range(len(payload)), places, name, tell)
        self._num_writing += 1
        try:
            await self._pump.run(write)
            self.last_error = await ended
        except LaneError as error:
            self.last_error = str(error)
        self._num_writing -= 1
        await self._confirm()

    async def _confirm(self) -> None:
        while self._stopping and not self._num_writing:
            stopped = Frame(kind=Kind.STOPPED, transfer_id=self._stopping.pop())
            await self._socket.send_multipart([stopped.encode()])

    async def receive(self) -> Frame:
        return await self._frames.get()

    async def hang_up(self) -> None:
        self._reading.cancel()
        await asyncio.wait([self._reading])
        await super().hang_up()
        self._pump.close()
        self._memory.close()

    async def _read(self) -> None:
        while True:
            frame = decode((await self._socket.recv_multipart())[0])
            if frame.kind is Kind.DOOR:
                self._lane = await self._pump.run(partial(self._aim, frame))
            elif frame.kind is Kind.PLACES:
                self._places[frame.transfer_id] = frame.sources.tolist()
            elif frame.kind is Kind.READY:
                self._let_in.add(frame.transfer_id)
            elif frame.kind is Kind.REFUSE and self.polite and frame.transfer_id != NO_TRANSFER:
                self._let_in.discard(frame.transfer_id)
                self._stopping.append(frame.transfer_id)
                await self._confirm()
            elif frame.kind is Kind.VERIFIED:
                self._let_in.discard(frame.transfer_id)
            self._changed.set()
            self._frames.put_nowait(frame)

    def _aim(self, door: Frame) -> Lane:
        lane = self._pump.adopt(Lane(self._memory, lambda _: None))
        lane.aim(door.body, door.length, door.num_blocks, door.first_index)
        return lane
