"""How fast KV blocks move: each connector beside what bounds it, in the same run.

`memcpy` copies the same blocks within this process; `raw zmq` is a bare PUSH/PULL pair that sends
the same bytes without copy and drops them. The sender is a process of its own, except for `local`.

    python -m benchmarks.transfer --total-mib 512 --rounds 5
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
import zmq
import zmq.asyncio
from rich.console import Console
from rich.table import Table

from shared.connector.base import Ticket
from shared.connector.local import LocalHub
from shared.connector.registry import ConnectorSettings, create
from shared.identity import WorkerId
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Awaitable, Callable

    from shared.connector.base import Connector

MIB = 1 << 20
RAW_BYTES = 4 * MIB
SENDER = WorkerId("sender", "1")
RECEIVER = WorkerId("receiver", "1")
REMOTE = ("shm", "zmq")
app = typer.Typer(add_completion=False)


@dataclass
class Bench:
    """The receiver's side; `seconds` collects one number per round for each subject."""

    layout: KVLayout
    num_blocks: int
    memory: KVMemory
    source: KVMemory
    child: Process
    seconds: dict[str, list[float]] = field(default_factory=dict)
    max_gap_ms: dict[str, float] = field(default_factory=dict)

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

    async def raw_zmq(self) -> float:
        """From the order to send until the last byte is here."""
        context = zmq.asyncio.Context()
        socket = context.socket(zmq.PULL)
        socket.bind("tcp://127.0.0.1:0")
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

    async def transfer(self, connector: Connector, sender: Connector | None) -> float:
        """From opening the ticket until all is verified."""
        started_at = time.perf_counter()
        inbound = connector.open(request_id="bench", sender=SENDER, blocks=range(self.num_blocks))
        if sender is None:
            await self.tell({"ticket": ticket_to_dict(inbound.ticket)})
            await inbound.wait(60)
        else:
            await asyncio.gather(_send(sender, inbound.ticket), inbound.wait(60))
        return time.perf_counter() - started_at

    async def tell(self, order: dict[str, object]) -> None:
        """Give the sending process something to do."""
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps(order).encode() + b"\n")
        await self.child.stdin.drain()


def ticket_to_dict(ticket: Ticket) -> dict[str, object]:
    """For the sending process."""
    return asdict(ticket) | {"transfer_id": ticket.transfer_id.hex()}


def ticket_from_dict(fields: dict[str, object]) -> Ticket:
    """The inverse of `ticket_to_dict`."""
    known = json.loads(json.dumps(fields))
    known["sender"], known["receiver"] = WorkerId(**known["sender"]), WorkerId(**known["receiver"])
    known["layout"] = KVLayout(**known["layout"])
    known["transfer_id"] = bytes.fromhex(known["transfer_id"])
    return Ticket(**known)


async def _send(connector: Connector, ticket: Ticket) -> None:
    outbound = await connector.connect(ticket, 10)
    await outbound.push(0, range(ticket.num_blocks))
    await outbound.finish(60)


async def _max_gap_ms(over: asyncio.Event) -> float:
    """The longest time that the event loop gave nobody a turn, until it is over."""
    longest, last = 0.0, time.perf_counter()
    while not over.is_set():
        await asyncio.sleep(0.0005)
        now = time.perf_counter()
        longest, last = max(longest, now - last - 0.0005), now
    return longest * 1e3


async def _serve(folder: Path, layout: KVLayout, num_blocks: int) -> None:
    memory = _filled(layout, num_blocks)
    settings = ConnectorSettings(runtime_dir=folder)
    connectors = {
        connector.name: connector
        for connector in create(REMOTE, worker=SENDER, memory=memory, settings=settings)
    }
    for connector in connectors.values():
        await connector.start()
    while line := await asyncio.to_thread(sys.stdin.readline):
        order = json.loads(line)
        if "raw" in order:
            await asyncio.to_thread(_push_raw, memory, order["raw"], order["num_messages"])
        else:
            ticket = ticket_from_dict(order["ticket"])
            await _send(connectors[ticket.connector], ticket)
    for connector in connectors.values():
        await connector.close()
    memory.close()


def _push_raw(memory: KVMemory, address: str, num_messages: int) -> None:
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.connect(address)
        socket.send(b"ready")
        view = memoryview(memory.buffer)
        for i in range(num_messages):
            socket.send(view[i * RAW_BYTES : (i + 1) * RAW_BYTES], copy=False)
        # Closing waits until all is sent.


def _filled(layout: KVLayout, num_blocks: int) -> KVMemory:
    memory = KVMemory(layout, num_blocks)
    rng = np.random.default_rng(0)
    memory.blocks[:] = rng.integers(0, 256, memory.blocks.shape, np.uint8)
    return memory


async def _run(layout: KVLayout, num_blocks: int, rounds: int) -> Bench:
    with tempfile.TemporaryDirectory() as name:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.transfer", "serve", name),
            *(json.dumps(asdict(layout)), str(num_blocks)),
            stdin=asyncio.subprocess.PIPE,
        )
        memory, source = _filled(layout, num_blocks), _filled(layout, num_blocks)
        settings = ConnectorSettings(runtime_dir=Path(name), hub=LocalHub())
        receivers = create(["local", *REMOTE], worker=RECEIVER, memory=memory, settings=settings)
        (local,) = create(["local"], worker=SENDER, memory=source, settings=settings)
        for connector in (*receivers, local):
            await connector.start()
        bench = Bench(layout, num_blocks, memory, source, child)
        for _ in range(rounds + 1):
            await bench.time("memcpy", bench.memcpy)
            await bench.time("raw zmq", bench.raw_zmq)
            for receiver in receivers:
                sender = local if receiver.name == "local" else None
                await bench.time(receiver.name, partial(bench.transfer, receiver, sender))
        for connector in (local, *receivers):
            await connector.close()
        await child.communicate(b"")
        memory.close()
        source.close()
        return bench


def _table(bench: Bench) -> Table:
    mib = bench.num_blocks * bench.layout.block_bytes / MIB
    # The first round warms up: pages, connections, the sender's interpreter.
    rates = {name: mib / statistics.median(times[1:]) for name, times in bench.seconds.items()}
    bounds = {"local": "memcpy", "shm": "memcpy", "zmq": "raw zmq"}
    title = f"{mib:.0f} MiB in blocks of {bench.layout.block_bytes / MIB:.2f} MiB, medians"
    table = Table("", "MiB/s", "of its bound", "longest loop gap, ms", title=title)
    for name, rate in rates.items():
        bound = bounds.get(name)
        share = f"{rate / rates[bound]:.0%} of {bound}" if bound else ""
        table.add_row(name, f"{rate:,.0f}", share, f"{bench.max_gap_ms[name]:.1f}")
    return table


@app.command()
def run(
    total_mib: Annotated[int, typer.Option(help="Bytes moved per round.")] = 512,
    rounds: Annotated[int, typer.Option(help="Rounds that count; one more warms up.")] = 5,
    num_layers: Annotated[int, typer.Option(help="32 layers are 2 MiB per block.")] = 32,
) -> None:
    """Measure and print the table."""
    layout = KVLayout(
        num_layers=num_layers, num_kv_heads=8, block_size=16, head_dim=128, dtype="bfloat16"
    )
    bench = asyncio.run(_run(layout, total_mib * MIB // layout.block_bytes, rounds))
    Console().print(_table(bench))


@app.command(hidden=True)
def serve(folder: Path, layout: str, num_blocks: int) -> None:
    """The sending process."""
    asyncio.run(_serve(folder, KVLayout(**json.loads(layout)), num_blocks))


if __name__ == "__main__":
    app()
