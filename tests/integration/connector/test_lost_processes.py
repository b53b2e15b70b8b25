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
from shared.connector.remote.address import EndpointAddress
from shared.connector.remote.connector import RemoteConnector
from shared.connector.remote.line import Line
from shared.connector.remote.serve import EndpointSettings, serve_endpoint
from shared.errors import ConfigError, TransferError, TransferFailure
from shared.kv.memory import KVMemory
from tests.fakes.processes.warm_process import WarmProcess
from tests.integration.connector.endpoint_process import HEARTBEAT_S, TIMEOUT_S
from tests.integration.connector.harnesses import keep_to_loopback
from tests.integration.connector.peer import BYTE, CHILD, PARENT, from_hex, to_hex
from tests.suites.connector.harness import LAYOUT, LIMITS, NUM_BLOCKS, SENTINEL, TOKEN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from shared.connector.base import Connector, OutboundTransfer
    from shared.errors import RankError

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

    def __init__(self, folder: Path, module: str, *args: str) -> None:
        os.mkfifo(folder / "ticket")
        # For both directions, so that nothing waits for a child that has ended.
        self._ticket = (folder / "ticket").open("r+b", buffering=0)
        output, write_end = os.pipe()
        self._output = os.fdopen(output, encoding="utf-8")
        argv = [f"tests.integration.connector.{module}", *args, str(folder)]
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
def child(folder: Path, module: str, *args: str) -> Iterator[Child]:
    with closing(Child(folder, module, *args)) as started:
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
        with child(folder, "peer", kind, "sender") as sender:
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
        with child(folder, "peer", kind, "receiver") as receiver:
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
        with child(folder, "peer", "shm", "sender") as sender:

            async def after_its_death(io: BlockAccess, *args: object) -> object:
                sender.kill()
                return await write(io, *args)

            monkeypatch.setattr(BlockAccess, "write", after_its_death)
            inbound = await connector.open(request_id="r", sender=CHILD, blocks=range(8))
            sender.tell(to_hex(inbound.ticket))
            await _is_lost(inbound.wait(30))
        assert inbound.num_blocks_received == 3
        assert (np.asarray(connector._memory.blocks[:3]) == BYTE).all()


@asynccontextmanager
async def rank_0(address: str, lost: list[RankError]) -> AsyncIterator[RemoteConnector]:
    """The client of an endpoint in another process."""
    at = EndpointAddress(rank=1, address=address, token=TOKEN, timeout_s=TIMEOUT_S)
    line = Line(at, on_lost=lost.append)
    await line.open()
    settings = ConnectorSettings(heartbeat_s=HEARTBEAT_S, limits=LIMITS)
    connector = RemoteConnector(line, "zmq", worker=CHILD, settings=settings)
    try:
        await connector.start()
        yield connector
    finally:
        await connector.close()
        await line.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_lost_endpoint_ends_the_transfers_of_its_blocks(
    how: signal.Signals, folder: Path
) -> None:
    """It is noticed by rank 0, by name, and by the peer on its own."""
    lost: list[RankError] = []
    async with parent("zmq", folder) as peer:
        with child(folder, "endpoint_process", "serve") as process:
            address = (await process.line()).strip()
            async with rank_0(address, lost) as remote:
                inbound = await remote.open(request_id="r", sender=PARENT, blocks=range(8))
                outbound = await peer.connect(inbound.ticket, 5)
                await outbound.push(0, range(8))
                back = await peer.open(request_id="r", sender=CHILD, blocks=range(8, 16))
                sending = await remote.connect(back.ticket, 5)
                await sending.push(0, range(3))
                while back.num_blocks_received < 3:  # noqa: ASYNC110 it is told
                    await asyncio.sleep(0.01)
                process.process.send_signal(how)
                with pytest.raises(TransferError, match="rank 1 at tcp://"):
                    await inbound.wait(30)
                await _is_lost(sending.push(3, range(3, 8)))
                await _is_lost(back.wait(30))
                await _is_lost(outbound.finish(30))
                await asyncio.gather(inbound.abort(), sending.abort(), outbound.abort())
    assert [error.rank for error in lost] == [1]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_an_endpoint_that_lost_rank_0_ends_every_transfer(
    how: signal.Signals, folder: Path
) -> None:
    """No byte is written any more, and what comes back is refused."""
    memory = KVMemory(LAYOUT, NUM_BLOCKS)
    settings = EndpointSettings(rank=1, token=TOKEN, host="127.0.0.1", timeout_s=TIMEOUT_S)
    endpoint = serve_endpoint(memory, settings)
    async with parent("zmq", folder) as peer:
        with child(folder, "endpoint_process", "use") as process:
            process.tell(endpoint.address.address)
            outbound = await peer.connect(from_hex(await process.line()), 5)
            await outbound.push(0, range(3))
            process.process.send_signal(how)
            async with asyncio.timeout(30):
                while not endpoint._server._refused:  # noqa: ASYNC110 it is another thread's
                    await asyncio.sleep(0.01)
            with pytest.raises(TransferError) as error:
                await _send_rest(outbound)
            assert error.value.reason in (TransferFailure.ABORTED, TransferFailure.PEER_LOST)
            memory.blocks[:] = SENTINEL
            await outbound.abort()
            with pytest.raises(ConfigError, match=r"rank 1 .*of no more use"):
                async with rank_0(endpoint.address.address, []):
                    pass
    assert (memory.blocks == SENTINEL).all()
    endpoint.close()
    memory.close()


async def _send_rest(outbound: OutboundTransfer) -> None:
    await outbound.push(3, range(3, 8))
    await outbound.finish(30)
