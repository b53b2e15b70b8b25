"""What the connector suite needs of each connector: pairs of workers, and a peer that cheats."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from shared.connector.protocol.block_copy import checksum_blocks
from shared.connector.protocol.checksum import layout_fingerprint, piece_checksum, transfer_digest
from shared.connector.protocol.frame import Frame, Kind
from shared.connector.protocol.greeting import hello
from shared.connector.protocol.limits import TransferLimits
from shared.identity import WorkerId
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from shared.connector.base import InboundTransfer, Ticket
    from shared.connector.protocol.transport import Transport

LAYOUT = KVLayout.single(num_layers=2, num_kv_heads=1, block_size=4, head_dim=16, dtype="float16")
BLOCK_BYTES = LAYOUT.block_bytes
NUM_BLOCKS = 32
SENTINEL = 0xA5
#: Of groups whose ranks have endpoints.
TOKEN = b"a secret of the group's ranks"
LIMITS = TransferLimits(
    window_bytes=8 * BLOCK_BYTES,
    piece_bytes=3 * BLOCK_BYTES,
    stall_timeout_s=10.0,
    release_timeout_s=2.0,
)


@dataclass
class Worker:
    """A worker with a memory and a started connector."""

    id: WorkerId
    memory: KVMemory
    connector: Transport

    @property
    def blocks(self) -> np.ndarray:
        return self.memory.blocks

    async def open(self, sender: WorkerId, blocks: Sequence[int]) -> InboundTransfer:
        return await self.connector.open(request_id="request-1", sender=sender, blocks=blocks)


class RawPeer(Protocol):
    """A connection that says whatever a test wants."""

    async def send(self, data: bytes, payload: Sequence[bytes] = ()) -> None:
        """Send a frame's bytes. The payload of a piece, one item per block, follows it."""
        ...

    async def receive(self) -> Frame:
        """The next frame from the receiver."""
        ...

    async def hang_up(self) -> None:
        """Cut the connection."""
        ...


class Harness(Protocol):
    """Makes connectors of one kind, which can reach each other."""

    def make(self, worker: WorkerId, memory: KVMemory, limits: TransferLimits) -> Transport:
        """A connector that is not started."""
        ...

    async def raw(self, address: str) -> RawPeer:
        """A raw connection to the connector at `address`."""
        ...

    def files(self) -> set[str]:
        """What there is where connectors of this kind put files."""
        ...


@asynccontextmanager
async def running(
    harness: Harness,
    *names: str,
    limits: TransferLimits = LIMITS,
    layout: KVLayout = LAYOUT,
    num_blocks: int = NUM_BLOCKS,
) -> AsyncIterator[list[Worker]]:
    """Started workers; afterwards nothing of them is left."""
    before = resources()
    files = harness.files()
    workers: list[Worker] = []
    for seed, name in enumerate(names):
        memory = KVMemory(layout, num_blocks)
        rng = np.random.default_rng(seed)
        memory.blocks[:] = rng.integers(0, 256, memory.blocks.shape, np.uint8)
        id_ = WorkerId.born(name)
        workers.append(Worker(id_, memory, harness.make(id_, memory, limits)))
    try:
        for worker in workers:
            await worker.connector.start()
        yield workers
    finally:
        for worker in workers:
            await worker.connector.close()
            worker.memory.close()
        workers.clear()
    await asyncio.sleep(0)
    left = resources() - before
    if left:
        # A failed test's traceback may have held on to a block.
        gc.collect()
        left = resources() - before
    assert not left, left
    assert harness.files() == files


def resources() -> set[str]:
    """What must not leak: descriptors, mapped memories, threads, tasks."""
    found = {f"thread {thread.name}" for thread in threading.enumerate()}
    found |= {f"task {task.get_name()}" for task in asyncio.all_tasks()}
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "baton-kv" in line:
            found.add(line)
    for fd in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"descriptor {fd.name}: {fd.readlink()}")
        except OSError:
            continue  # the one that lists the folder
    return found


def a_piece(ticket: Ticket, index: int, payload: Sequence[bytes], **overrides: object) -> Frame:
    """The frame that honestly describes `payload`, but for the overrides."""
    frame = Frame(
        kind=Kind.PIECE,
        transfer_id=ticket.transfer_id,
        layout=layout_fingerprint(ticket.layout),
        first_index=index,
        num_blocks=len(payload),
        num_layers=ticket.layout.num_layers,
        length=sum(map(len, payload)),
        digest=checksum(payload),
    )
    return replace(frame, **overrides)


def checksum(payload: Sequence[bytes]) -> int:
    return piece_checksum(checksum_blocks([np.frombuffer(block, np.uint8) for block in payload]))


def a_done(ticket: Ticket, *pieces: Sequence[bytes]) -> Frame:
    """The end of a transfer of these pieces, in order."""
    return Frame(kind=Kind.DONE, transfer_id=ticket.transfer_id, digest=digest(*pieces))


def digest(*pieces: Sequence[bytes]) -> int:
    indices = np.cumsum([0, *map(len, pieces[:-1])]).tolist()
    return transfer_digest(dict(zip(indices, map(checksum, pieces), strict=True)))


def some_blocks(num_blocks: int, seed: int = 9) -> list[bytes]:
    rng = np.random.default_rng(seed)
    return [rng.bytes(BLOCK_BYTES) for _ in range(num_blocks)]


async def greet(
    harness: Harness, receiver: Worker, sender: WorkerId, **overrides: object
) -> RawPeer:
    """A raw connection that has said HELLO; the answer is not read."""
    raw = await harness.raw(receiver.connector.offer().address)
    frame = hello(
        sender=sender,
        receiver=receiver.id,
        layout=layout_fingerprint(LAYOUT),
        num_blocks=NUM_BLOCKS,
        num_bytes=NUM_BLOCKS * BLOCK_BYTES,
    )
    await raw.send(replace(frame, **overrides).encode())
    return raw


async def enter(harness: Harness, receiver: Worker, inbound: InboundTransfer) -> RawPeer:
    """A raw connection that has presented the ticket and was let in."""
    ticket = inbound.ticket
    raw = await greet(harness, receiver, ticket.sender)
    await expect(raw, Kind.GRANT)
    await raw.send(an_open(ticket).encode())
    await expect(raw, Kind.READY)
    return raw


def an_open(ticket: Ticket) -> Frame:
    return Frame(kind=Kind.OPEN, transfer_id=ticket.transfer_id, num_blocks=ticket.num_blocks)


async def expect(raw: RawPeer, kind: Kind) -> Frame:
    """The next frame of this kind; others are skipped."""
    while True:
        async with asyncio.timeout(5):
            frame = await raw.receive()
        if frame.kind is kind:
            return frame
