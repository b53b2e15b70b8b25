"""A worker in a process of its own, to be killed: `python -m … shm|zmq sender|receiver DIR`.

A sender reads its ticket from the pipe DIR/ticket.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path

from shared.connector.base import Ticket
from shared.connector.registry import ConnectorSettings, create
from shared.identity import WorkerId
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from tests.suites.connector_harness import LAYOUT, LIMITS, NUM_BLOCKS

CHILD = WorkerId("child", "1")
PARENT = WorkerId("parent", "1")
BYTE = 0x5C


def to_json(ticket: Ticket) -> str:
    return json.dumps(asdict(ticket) | {"transfer_id": ticket.transfer_id.hex()})


def from_json(text: str) -> Ticket:
    fields = json.loads(text)
    for side in ("sender", "receiver"):
        fields[side] = WorkerId(**fields[side])
    fields["layout"] = KVLayout(**fields["layout"])
    fields["transfer_id"] = bytes.fromhex(fields["transfer_id"])
    return Ticket(**fields)


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
        inbound = connector.open(request_id="r", sender=PARENT, blocks=range(8))
        _say(to_json(inbound.ticket))
        await inbound.wait(60)
    else:
        with (folder / "ticket").open() as pipe:
            ticket = from_json(await asyncio.to_thread(pipe.readline))
        outbound = await connector.connect(ticket, 5)
        await outbound.push(0, range(3))
        _say("pushed")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
