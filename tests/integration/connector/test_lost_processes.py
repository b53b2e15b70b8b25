"""Real processes that are killed or stopped in the middle of a transfer."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import asynccontextmanager, closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shared.connector.protocol.block_io import BlockAccess
from shared.connector.registry import ConnectorSettings, create
from shared.errors import TransferError, TransferFailure
from shared.kv.memory import KVMemory
from tests.fakes.warm_process import WarmProcess
from tests.integration.connector.harnesses import keep_to_loopback
from tests.integration.connector.peer import BYTE, CHILD, PARENT, from_hex, to_hex
from tests.suites.connector_harness import LAYOUT, LIMITS, NUM_BLOCKS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from shared.connector.base import Connector

ROOT = Path(__file__).parents[3]
#: Far more than a disconnection or three heartbeats of a tenth of a second need.
NOTICED_S = 5.0
#: What UCX, OpenMP and leases of cores name theirs: tests that run beside these have some.
_LIBRARIES = ("ucx_", "__KMP_", "baton-cores-")
needs_nixl = pytest.mark.skipif(find_spec("nixl") is None, reason="the extra `nixl` is missing")
WAYS = [
    ("shm", signal.SIGKILL),
    ("zmq", signal.SIGKILL),
    ("zmq", signal.SIGSTOP),
    pytest.param("nixl", signal.SIGKILL, marks=needs_nixl),
    pytest.param("nixl", signal.SIGSTOP, marks=needs_nixl),
]


@asynccontextmanager
async def parent(kind: str, folder: Path) -> AsyncIterator[Connector]:
    memory = KVMemory(LAYOUT, NUM_BLOCKS)
    settings = ConnectorSettings(runtime_dir=folder, heartbeat_s=0.1, limits=LIMITS)
    (connector,) = create([kind], worker=PARENT, memory=memory, settings=settings)
    await connector.start()
    try:
        yield connector
    finally:
        await connector.close()
        memory.close()


class Child:
    """The process at the other end, and the two pipes to it."""

    def __init__(self, kind: str, role: str, folder: Path) -> None:
        os.mkfifo(folder / "ticket")
        # For both directions, so that nothing waits for a child that has ended.
        self._ticket = (folder / "ticket").open("r+b", buffering=0)
        output, write_end = os.pipe()
        self._output = os.fdopen(output, encoding="utf-8")
        argv = ["tests.integration.connector.peer", kind, role, str(folder)]
        with os.fdopen(write_end, "wb") as log:
            self.process = WarmProcess(argv, cwd=ROOT, env=os.environ, log=log)

    async def line(self) -> str:
        """The next line that it writes."""
        async with asyncio.timeout(30):
            return await asyncio.to_thread(self._output.readline)

    def tell(self, ticket: str) -> None:
        """Have a sender push to the transfer of this ticket."""
        self._ticket.write(ticket.encode() + b"\n")

    def kill(self) -> None:
        """End it, if it runs."""
        self.process.kill()
        self.process.wait(30)

    def close(self) -> None:
        """Leave nothing behind."""
        self.kill()
        self._output.close()
        self._ticket.close()


@contextmanager
def child(kind: str, role: str, folder: Path) -> Iterator[Child]:
    with closing(Child(kind, role, folder)) as started:
        yield started


async def _is_lost(awaitable: object) -> None:
    started_at = time.monotonic()
    with pytest.raises(TransferError) as error:
        await awaitable
    assert error.value.reason is TransferFailure.PEER_LOST
    assert time.monotonic() - started_at < NOTICED_S


def _segments() -> set[Path]:
    """Return the segments of shared memory here, but for those of libraries in other processes."""
    return {path for path in Path("/dev/shm").iterdir() if not path.name.startswith(_LIBRARIES)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    keep_to_loopback()
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.mark.parametrize(("kind", "how"), WAYS)
async def test_a_lost_sender_is_noticed(kind: str, how: signal.Signals, folder: Path) -> None:
    """One that is killed writes to another memory than the connector's own, if that is possible."""
    segments = _segments()
    async with parent(kind, folder) as connector:
        is_beside = how is signal.SIGKILL and connector.takes_memory
        beside = KVMemory(LAYOUT, NUM_BLOCKS) if is_beside else None
        with child(kind, "sender", folder) as sender:
            inbound = await connector.open(
                request_id="r", sender=CHILD, blocks=range(8), memory=beside
            )
            sender.tell(to_hex(inbound.ticket))
            assert await sender.line() == "pushed\n"
            sender.process.send_signal(how)
            await _is_lost(inbound.wait(30))
    assert _segments() == segments


@pytest.mark.parametrize(("kind", "how"), WAYS)
async def test_a_lost_receiver_is_noticed(kind: str, how: signal.Signals, folder: Path) -> None:
    async with parent(kind, folder) as connector:
        with child(kind, "receiver", folder) as receiver:
            ticket = from_hex(await receiver.line())
            outbound = await connector.connect(ticket, 5)
            await outbound.push(0, range(8))
            receiver.process.send_signal(how)
            if how is signal.SIGKILL:
                receiver.process.wait(30)
            await _is_lost(outbound.finish(30))
            await outbound.abort()


async def test_the_memory_of_a_killed_sender_is_read_without_harm(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = BlockAccess.write
    async with parent("shm", folder) as connector:
        with child("shm", "sender", folder) as sender:

            async def after_its_death(io: BlockAccess, *args: object) -> object:
                sender.kill()
                return await write(io, *args)

            monkeypatch.setattr(BlockAccess, "write", after_its_death)
            inbound = await connector.open(request_id="r", sender=CHILD, blocks=range(8))
            sender.tell(to_hex(inbound.ticket))
            await _is_lost(inbound.wait(30))
        assert inbound.num_blocks_received == 3
        assert (np.asarray(connector._memory.blocks[:3]) == BYTE).all()
