"""A rank's process with an endpoint, and its connector as rank 0 has it."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from benchmarks.transfer.sender import filled
from shared.connector.registry import ConnectorSettings
from shared.connector.remote.address import EndpointAddress
from shared.connector.remote.connector import RemoteConnector
from shared.connector.remote.line import Line
from shared.connector.remote.serve import EndpointSettings, serve_endpoint

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from shared.errors import RankError
    from shared.identity import WorkerId
    from shared.kv.layout import KVLayout


def serve(layout: KVLayout, num_blocks: int, token: bytes) -> None:
    """Serve a memory of its own until standard input ends."""
    memory = filled(layout, num_blocks)
    endpoint = serve_endpoint(memory, EndpointSettings(rank=1, token=token, host="127.0.0.1"))
    print(endpoint.address.address, flush=True)
    sys.stdin.read()
    endpoint.close()
    memory.close()


@asynccontextmanager
async def remote(
    kind: str, worker: WorkerId, shape: dict[str, object], num_blocks: int
) -> AsyncIterator[RemoteConnector]:
    """A connector of another process, not started, and closed by the caller."""
    token = secrets.token_bytes(32)
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.transfer", "endpoint"),
        *(json.dumps(shape), str(num_blocks), token.hex()),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdout is not None
    address = (await child.stdout.readline()).decode().strip()
    line = Line(EndpointAddress(rank=1, address=address, token=token), on_lost=_fail)
    await line.open()
    yield RemoteConnector(line, kind, worker=worker, settings=ConnectorSettings())
    await line.close()
    await child.communicate(b"")


def _fail(error: RankError) -> None:
    raise error
