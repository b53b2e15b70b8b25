"""`cuda_ipc` between two processes on one GPU: into poison, and how fast.

Nothing of this has run before: it was written without a device.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from shared.errors import TransferError, TransferFailure
from tests.gpu.cuda_peer import CHILD, LAYOUT, NUM_BLOCKS, PARENT, make_cache, make_connector
from tests.integration.connector.peer import to_json

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator

    from shared.connector.device.cuda_ipc import CudaIpcConnector

ROOT = Path(__file__).parents[2]
POISON = 0x7F
NUM_TARGETS = NUM_BLOCKS + 64


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


@asynccontextmanager
async def pair(folder: Path) -> AsyncIterator[tuple[CudaIpcConnector, torch.Tensor, Process]]:
    """A receiver here with poisoned blocks, and a sender in another process."""
    cache = make_cache(NUM_TARGETS)
    cache.view(torch.uint8).fill_(POISON)
    connector = make_connector(PARENT, cache, folder)
    await connector.start()
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "tests.gpu.cuda_peer", str(folder))
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, cwd=ROOT)
    try:
        yield connector, cache, process
    finally:
        await process.communicate()
        await connector.close()


async def receive(
    connector: CudaIpcConnector, process: Process, targets: list[int]
) -> tuple[int, float]:
    """The receipt's digest and seconds; the sender says the same digest."""
    inbound = connector.open(request_id="r", sender=CHILD, blocks=targets)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(to_json(inbound.ticket).encode() + b"\n")
    await process.stdin.drain()
    receipt = await inbound.wait(120)
    assert (await process.stdout.readline()).decode() == f"pushed {receipt.digest}\n"
    assert receipt.num_copied_bytes == receipt.num_bytes == len(targets) * LAYOUT.block_bytes
    return receipt.digest, receipt.duration_ms / 1e3


async def test_blocks_arrive_and_nothing_else_changes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order = torch.randperm(NUM_TARGETS, generator=torch.Generator().manual_seed(0)).tolist()
    targets, others = order[:NUM_BLOCKS], order[NUM_BLOCKS:]
    expected = make_cache(NUM_BLOCKS + 1)[1:].view(torch.uint8)
    async with pair(folder) as (connector, cache, process):
        digest, _ = await receive(connector, process, targets)
        arrived = cache.view(torch.uint8)
        assert torch.equal(arrived[targets], expected)
        assert (arrived[others] == POISON).all()
        runs = [await receive(connector, process, targets) for _ in range(5)]
        assert {found for found, _ in runs} == {digest}
        seconds = min(duration for _, duration in runs)
        gib = NUM_BLOCKS * LAYOUT.block_bytes / (1 << 30)
        with capsys.disabled():
            sys.stdout.write(f"\ncuda_ipc: {gib / seconds:.1f} GiB/s, verified, {gib:.2f} GiB\n")


async def test_a_killed_sender_is_noticed_and_its_memory_unmapped(folder: Path) -> None:
    async with pair(folder) as (connector, cache, process):
        await receive(connector, process, list(range(8)))
        inbound = connector.open(request_id="r", sender=CHILD, blocks=range(8, 16))
        process.kill()
        await process.wait()
        await inbound.abort()
        with pytest.raises(TransferError) as error:
            await inbound.wait(5)
        assert error.value.reason is TransferFailure.ABORTED
        # The device still works.
        assert (cache.view(torch.uint8)[8:] == POISON).all()
