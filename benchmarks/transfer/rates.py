"""The receiving process of the measurement, and what it has measured."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zmq
import zmq.asyncio
from rich.table import Table

from benchmarks.transfer.sender import (
    RAW_BYTES,
    SENDER,
    filled,
    make,
    send,
    ticket_to_hex,
)
from shared.connector.base import Offer
from shared.connector.local import LocalHub
from shared.connector.registry import ConnectorSettings, create
from shared.identity import WorkerId

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Awaitable, Callable, Sequence

    from shared.connector.base import Connector
    from shared.kv.layout import KVLayout
    from shared.kv.memory import KVMemory

MIB = 1 << 20
RECEIVER = WorkerId("receiver", "1")
#: The bound of each connector here: no connector is faster than it without sending less.
BOUNDS = {
    "local": "memcpy",
    "shm": "memcpy",
    "zmq_ipc": "raw ipc",
    "zmq": "raw tcp",
    "nixl": "raw tcp",
}


@dataclass
class Bench:
    """The receiver's side; `seconds` collects one number per round for each subject."""

    layout: KVLayout
    num_blocks: int
    memory: KVMemory
    source: KVMemory
    child: Process
    folder: Path
    seconds: dict[str, list[float]] = field(default_factory=dict)
    max_gap_ms: dict[str, float] = field(default_factory=dict)
    #: Of the last transfer on each connector, and bytes copied on both sides per byte sent.
    pieces: dict[str, int] = field(default_factory=dict)
    copies: dict[str, float] = field(default_factory=dict)
    #: Bytes on the wire per byte of the blocks.
    wire: dict[str, float] = field(default_factory=dict)

    async def time(self, name: str, work: Callable[[], Awaitable[float]]) -> None:
        """One round of `work`, which returns the seconds that count."""
        over = asyncio.Event()
        gap = asyncio.create_task(_max_gap_ms(over))
        await asyncio.sleep(0)
        self.seconds.setdefault(name, []).append(await work())
        over.set()
        self.max_gap_ms[name] = max(self.max_gap_ms.get(name, 0.0), await gap)

    async def memcpy(self) -> float:
        """Block by block, as a connector does."""
        targets, sources = self.memory.blocks, self.source.blocks
        started_at = time.perf_counter()
        for i in range(self.num_blocks):
            np.copyto(targets[i], sources[i])
        return time.perf_counter() - started_at

    async def raw(self, endpoint: str) -> float:
        """From the order to send until the last byte is here."""
        context = zmq.asyncio.Context()
        socket = context.socket(zmq.PULL)
        socket.bind(endpoint)
        address = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        num_messages = self.num_blocks * self.layout.block_bytes // RAW_BYTES
        await self.tell({"raw": address, "num_messages": num_messages})
        await socket.recv()
        started_at = time.perf_counter()
        for _ in range(num_messages):
            await socket.recv(copy=False)
        seconds = time.perf_counter() - started_at
        socket.close(0)
        context.term()
        return seconds

    async def transfer(self, name: str, connector: Connector, sender: Connector | None) -> float:
        """From opening the ticket until all is verified."""
        started_at = time.perf_counter()
        inbound = await connector.open(
            request_id="bench", sender=SENDER, blocks=range(self.num_blocks)
        )
        if sender is None:
            await self.tell({"ticket": ticket_to_hex(inbound.ticket), "on": name})
            receipt = await inbound.wait(60)
            seconds = time.perf_counter() - started_at
            sent = await self.told()
        else:
            sent, receipt = await asyncio.gather(send(sender, inbound.ticket), inbound.wait(60))
            seconds = time.perf_counter() - started_at
        self.pieces[name] = receipt.num_pieces
        copied = receipt.num_copied_bytes + sent["copied"]
        self.copies[name] = copied / receipt.num_bytes
        self.wire[name] = sent["wire"] / receipt.num_bytes
        return seconds

    async def told(self) -> dict[str, Any]:
        """What the sending process says of its last order."""
        assert self.child.stdout is not None
        answer: dict[str, Any] = json.loads(await self.child.stdout.readline())
        return answer

    async def tell(self, order: dict[str, object]) -> None:
        """Give the sending process something to do."""
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps(order).encode() + b"\n")
        await self.child.stdin.drain()


async def _max_gap_ms(over: asyncio.Event) -> float:
    """Return the longest time [ms] in which the event loop ran no other task, until `over`."""
    longest, last = 0.0, time.perf_counter()
    while not over.is_set():
        await asyncio.sleep(0.0005)
        now = time.perf_counter()
        longest, last = max(longest, now - last - 0.0005), now
    return longest * 1e3


async def measure(names: Sequence[str], layout: KVLayout, num_blocks: int, rounds: int) -> Bench:
    """All subjects in turn, `rounds` times and once more to warm up."""
    (group,) = layout.groups
    shape = {
        "num_layers": group.num_layers,
        "num_kv_heads": group.num_kv_heads,
        "block_size": layout.block_size,
        "head_dim": group.head_dim,
        "dtype": layout.dtype,
    }
    with tempfile.TemporaryDirectory() as name:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.transfer", "serve", name),
            *(json.dumps(shape), str(num_blocks), ",".join(names)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        memory, source = filled(layout, num_blocks), filled(layout, num_blocks)
        settings = ConnectorSettings(runtime_dir=Path(name), hub=LocalHub())
        receivers = make(["local", *names], worker=RECEIVER, memory=memory, settings=settings)
        (local,) = create(["local"], worker=SENDER, memory=source, settings=settings)
        for connector in (*receivers.values(), local):
            await connector.start()
        bench = Bench(layout, num_blocks, memory, source, child, Path(name))
        for label, address in (await bench.told()).items():
            offer = Offer(connector=receivers[label].name, address=address, params={})
            receivers[label].meet(SENDER, offer)
        for _ in range(rounds + 1):
            await bench.time("memcpy", bench.memcpy)
            await bench.time("raw ipc", partial(bench.raw, f"ipc://{name}/raw.sock"))
            await bench.time("raw tcp", partial(bench.raw, "tcp://127.0.0.1:0"))
            for label, receiver in receivers.items():
                sender = local if label == "local" else None
                await bench.time(label, partial(bench.transfer, label, receiver, sender))
        for connector in (local, *receivers.values()):
            await connector.close()
        await child.communicate(b"")
        memory.close()
        source.close()
        return bench


def table_of(bench: Bench) -> Table:
    """One row per subject. The first round warms up: pages, connections, the interpreter."""
    mib = bench.num_blocks * bench.layout.block_bytes / MIB
    rates = {name: mib / statistics.median(times[1:]) for name, times in bench.seconds.items()}
    title = f"{mib:.0f} MiB in blocks of {bench.layout.block_bytes / MIB:.2f} MiB, medians"
    table = Table(
        *("", "MiB/s", "of its bound", "pieces", "copied per byte", "on the wire per byte"),
        "longest loop gap, ms",
        title=title,
    )
    for name, rate in rates.items():
        bound = BOUNDS.get(name.partition("+")[0])
        share = f"{rate / rates[bound]:.0%} of {bound}" if bound else ""
        moved = ("", "", "")
        if bound:
            copied, wire = f"{bench.copies[name]:.2f}", f"{bench.wire[name]:.3f}"
            moved = (str(bench.pieces[name]), copied, wire)
        table.add_row(name, f"{rate:,.0f}", share, *moved, f"{bench.max_gap_ms[name]:.1f}")
    return table
