"""`nixl` between two processes whose blocks are tensors: into poison, and how fast.

On a CPU it registers them as host memory, on a GPU as the device's; all else is the same.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from shared.errors import TransferError, TransferFailure
from tests.integration.connector.nixl.device_peer import (
    CHILD,
    LAYOUT,
    PARENT,
    make_cache,
    make_connector,
)
from tests.integration.connector.peer import to_hex

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator

    from shared.connector.nixl.connector import NixlConnector

ROOT = Path(__file__).parents[3]
POISON = 0x7F


@asynccontextmanager
async def _pair(
    device: str, num_blocks: int, num_targets: int
) -> AsyncIterator[tuple[NixlConnector, torch.Tensor, Process]]:
    """A receiver here with poisoned blocks, and a sender in another process."""
    cache = make_cache(num_targets, device)
    cache.view(torch.uint8).fill_(POISON)
    connector = make_connector(PARENT, cache)
    await connector.start()
    pipe = asyncio.subprocess.PIPE
    peer = ("tests.integration.connector.nixl.device_peer", device, str(num_blocks))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *peer), stdin=pipe, stdout=pipe, cwd=ROOT, env=env
    )
    try:
        yield connector, cache, process
    finally:
        await process.communicate()
        await connector.close()


async def _receive(
    connector: NixlConnector, process: Process, targets: list[int]
) -> tuple[int, float]:
    """The receipt's digest and seconds; the sender says the same digest."""
    inbound = await connector.open(request_id="r", sender=CHILD, blocks=targets)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(to_hex(inbound.ticket).encode() + b"\n")
    await process.stdin.drain()
    receipt = await inbound.wait(120)
    assert (await process.stdout.readline()).decode() == f"pushed {receipt.digest}\n"
    assert receipt.num_copied_bytes == 0
    return receipt.digest, receipt.duration_ms / 1e3


class NixlOnDeviceSuite:
    #: Of 2 MiB.
    num_blocks: int

    async def test_blocks_arrive_and_nothing_else_changes(
        self, device: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        num_targets = self.num_blocks + self.num_blocks // 8
        order = torch.randperm(num_targets, generator=torch.Generator().manual_seed(0)).tolist()
        targets, others = order[: self.num_blocks], order[self.num_blocks :]
        expected = make_cache(self.num_blocks + 1, device)[1:].view(torch.uint8)
        async with _pair(device, self.num_blocks, num_targets) as (connector, cache, process):
            digest, _ = await _receive(connector, process, targets)
            arrived = cache.view(torch.uint8)
            assert torch.equal(arrived[targets], expected)
            assert (arrived[others] == POISON).all()
            runs = [await _receive(connector, process, targets) for _ in range(3)]
            assert {found for found, _ in runs} == {digest}
            seconds = min(duration for _, duration in runs)
            gib = self.num_blocks * LAYOUT.block_bytes / (1 << 30)
            with capsys.disabled():
                sys.stdout.write(f"\nnixl on {device}: {gib / seconds:.1f} GiB/s, verified\n")
            # What a killed sender had not sent is not there, and the memory still works.
            arrived.fill_(POISON)
            await _receive(connector, process, others[:1])
            inbound = await connector.open(request_id="r", sender=CHILD, blocks=targets)
            process.kill()
            await process.wait()
            await inbound.abort()
            with pytest.raises(TransferError) as error:
                await inbound.wait(5)
            assert error.value.reason is TransferFailure.ABORTED
            assert (arrived[targets] == POISON).all()
