"""The sending process of the measurement: obeys line by line, and says what it did."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import zmq

from baton.v1 import transfer_pb2
from shared.connector.packing.rule import PackingMode
from shared.connector.registry import ConnectorSettings, create
from shared.identity import WorkerId
from shared.kv.memory import KVMemory
from shared.worker.peers.wire import ticket_from_wire, ticket_to_wire

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from shared.connector.base import Connector, Ticket
    from shared.kv.layout import KVLayout

RAW_BYTES = 4 << 20
#: After a connector's name in these measurements: what it is set to, on both sides.
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "curve": {"encrypt": True},
    "packed": {"packing": PackingMode.ON},
    "auto": {"packing": PackingMode.AUTO},
    # The receiver's blocks are those of a third process: see `endpoint`.
    "endpoint": {},
}
SENDER = WorkerId("sender", "1")


def ticket_to_hex(ticket: Ticket) -> str:
    """Return a ticket as text."""
    return ticket_to_wire(ticket).SerializeToString().hex()


def ticket_from_hex(text: str) -> Ticket:
    """Return the ticket of `ticket_to_hex`."""
    return ticket_from_wire(transfer_pb2.TransferTicket.FromString(bytes.fromhex(text)))


def filled(layout: KVLayout, num_blocks: int) -> KVMemory:
    """A memory of normally distributed bfloat16 numbers, every page of it in use."""
    memory = KVMemory(layout, num_blocks)
    shape = (layout.block_bytes // 2,)
    numbers = np.random.default_rng(0).standard_normal(shape, np.float32).view(np.uint32) >> 16
    block = numbers.astype("<u2")
    for number in range(num_blocks):
        memory.blocks[number] = np.roll(block, 64 * number).view(np.uint8)
    return memory


async def send(connector: Connector, ticket: Ticket) -> dict[str, int]:
    """Fill the ticket with our first blocks; what that took on this side."""
    outbound = await connector.connect(ticket, 10)
    await outbound.push(0, range(ticket.num_blocks))
    await outbound.finish(60)
    return {
        "pieces": outbound.num_pieces,
        "copied": outbound.num_copied_bytes,
        "wire": outbound.num_wire_bytes,
    }


def make(
    names: Sequence[str], *, worker: WorkerId, memory: KVMemory, settings: ConnectorSettings
) -> dict[str, Connector]:
    """Connectors by name, not started, with the `OPTIONS` after their names' plus signs."""
    made = {}
    for name in names:
        kind, *options = name.split("+")
        own = settings
        for option in options:
            own = replace(own, **OPTIONS[option])
        (made[name],) = create([kind], worker=worker, memory=memory, settings=own)
    return made


async def serve(names: Sequence[str], folder: Path, layout: KVLayout, num_blocks: int) -> None:
    """Say what is offered, then obey until standard input ends."""
    memory = filled(layout, num_blocks)
    settings = ConnectorSettings(runtime_dir=folder)
    connectors = make(names, worker=SENDER, memory=memory, settings=settings)
    for connector in connectors.values():
        await connector.start()
    offers = {name: connector.offer().address for name, connector in connectors.items()}
    print(json.dumps(offers), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        order = json.loads(line)
        if "raw" in order:
            await asyncio.to_thread(_push_raw, memory, order["raw"], order["num_messages"])
        else:
            ticket = ticket_from_hex(order["ticket"])
            print(json.dumps(await send(connectors[order["on"]], ticket)), flush=True)
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
