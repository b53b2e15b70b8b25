"""A worker in a process of its own, to be killed: `python -m … shm|zmq sender|receiver DIR`.

A sender reads its ticket from the pipe DIR/ticket.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from baton.v1 import transfer_pb2
from shared.connector.registry import ConnectorSettings, create
from shared.identity import WorkerId
from shared.kv.memory import KVMemory
from shared.worker.peers.wire import ticket_from_wire, ticket_to_wire
from tests.suites.connector.harness import LAYOUT, LIMITS, NUM_BLOCKS

if TYPE_CHECKING:
    from shared.connector.base import Ticket

CHILD = WorkerId("child", "1")
PARENT = WorkerId("parent", "1")
BYTE = 0x5C


def to_hex(ticket: Ticket) -> str:
    return ticket_to_wire(ticket).SerializeToString().hex()


def from_hex(text: str) -> Ticket:
    return ticket_from_wire(transfer_pb2.TransferTicket.FromString(bytes.fromhex(text)))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def main(kind: str, role: str, folder: Path) -> None:
    memory = KVMemory(LAYOUT, NUM_BLOCKS)
    memory.blocks[:] = BYTE
    settings = ConnectorSettings(runtime_dir=folder, heartbeat_s=0.1, limits=LIMITS)
    (connector,) = create([kind], worker=CHILD, memory=memory, settings=settings)
    await connector.start()
    if role == "receiver":
        inbound = await connector.open(request_id="r", sender=PARENT, blocks=range(8))
        _say(to_hex(inbound.ticket))
        await inbound.wait(60)
    else:
        with (folder / "ticket").open() as pipe:
            ticket = from_hex(await asyncio.to_thread(pipe.readline))
        outbound = await connector.connect(ticket, 5)
        await outbound.push(0, range(3))
        _say("pushed")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
