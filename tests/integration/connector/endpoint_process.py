"""A rank's process that serves an endpoint, to be killed: `python -m … serve` or `… use DIR`.

`serve` writes the endpoint's address and goes on. `use` is rank 0's process instead: it uses the
endpoint whose address it reads from the pipe DIR/ticket, lets PARENT fill eight blocks, and writes
the ticket.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from shared.connector.registry import ConnectorSettings
from shared.connector.remote.address import EndpointAddress
from shared.connector.remote.connector import RemoteConnector
from shared.connector.remote.line import Line
from shared.connector.remote.serve import EndpointSettings, serve_endpoint
from shared.kv.memory import KVMemory
from tests.integration.connector.peer import BYTE, CHILD, PARENT, to_hex
from tests.suites.connector.harness import LAYOUT, LIMITS, NUM_BLOCKS, TOKEN

HEARTBEAT_S = 0.1
#: What a busy machine does not reach.
TIMEOUT_S = 3.0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def serve() -> None:
    memory = KVMemory(LAYOUT, NUM_BLOCKS)
    memory.blocks[:] = BYTE
    settings = EndpointSettings(rank=1, token=TOKEN, host="127.0.0.1", timeout_s=TIMEOUT_S)
    _say(serve_endpoint(memory, settings).address.address)
    time.sleep(60)


async def use(folder: Path) -> None:
    with (folder / "ticket").open() as pipe:
        address = (await asyncio.to_thread(pipe.readline)).strip()
    at = EndpointAddress(rank=1, address=address, token=TOKEN, timeout_s=TIMEOUT_S)
    line = Line(at, on_lost=lambda _: None)
    await line.open()
    settings = ConnectorSettings(heartbeat_s=HEARTBEAT_S, limits=LIMITS)
    connector = RemoteConnector(line, "zmq", worker=CHILD, settings=settings)
    await connector.start()
    inbound = await connector.open(request_id="r", sender=PARENT, blocks=range(8))
    _say(to_hex(inbound.ticket))
    await inbound.wait(60)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        asyncio.run(use(Path(sys.argv[2])))
