"""The connector suite where blocks pass through a staging pool, and the pool itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest
import torch

from shared.connector.device.staged import StagedConnector
from shared.connector.device.staging_pool import StagingPool
from shared.engine.memory.kv_staging import KVStaging
from shared.errors import TransferError, TransferFailure
from tests.integration.connector.harnesses import LocalHarness, ShmHarness
from tests.suites.connector.behaviour import BehaviourSuite
from tests.suites.connector.harness import LAYOUT, NUM_BLOCKS

if TYPE_CHECKING:
    from pathlib import Path

    from shared.connector.protocol.limits import TransferLimits
    from shared.connector.protocol.sender import Sender
    from shared.connector.protocol.transport import Transport
    from shared.identity import WorkerId
    from shared.kv.memory import KVMemory

CACHE_SHAPE = (NUM_BLOCKS, 2, 2, 1, 4, 16)


class ClosingConnector(StagedConnector):
    """Closes its staging memory with itself."""

    staging: KVStaging

    @property
    def _sender(self) -> Sender:
        """The suite cuts its connections."""
        return self._inner._sender  # type: ignore[attr-defined]

    async def close(self) -> None:
        await super().close()
        self.staging.close()


def staged(inner: LocalHarness | ShmHarness, worker: WorkerId, memory: KVMemory,
           limits: TransferLimits) -> Transport:  # fmt: skip
    """What the suite takes for the worker's memory plays the accelerator."""
    layout = memory.layout
    shape = layout.block_shape(layout.groups[0])
    dtype = getattr(torch, layout.dtype)
    cache = torch.frombuffer(memory.buffer, dtype=dtype).view(-1, *shape)
    staging = KVStaging(cache, layout, memory.num_blocks)
    connector = ClosingConnector(
        inner.make(worker, staging.memory, limits), StagingPool(memory.num_blocks), staging
    )
    connector.staging = staging
    return cast("Transport", connector)


class StagedLocalHarness(LocalHarness):
    def make(self, worker: WorkerId, memory: KVMemory, limits: TransferLimits) -> Transport:
        return staged(super(), worker, memory, limits)  # type: ignore[arg-type]


class StagedShmHarness(ShmHarness):
    def make(self, worker: WorkerId, memory: KVMemory, limits: TransferLimits) -> Transport:
        return staged(super(), worker, memory, limits)  # type: ignore[arg-type]


class TestStagedLocal(BehaviourSuite):
    @pytest.fixture
    def harness(self) -> LocalHarness:
        return StagedLocalHarness()


class TestStagedShm(BehaviourSuite):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> ShmHarness:
        return StagedShmHarness(tmp_path / "run")


async def test_the_pool_serves_in_order_and_all_at_once() -> None:
    pool = StagingPool(8)
    first = await pool.take(6, 1)
    large = asyncio.create_task(pool.take(7, 5))
    small = asyncio.create_task(pool.take(1, 5))
    await asyncio.sleep(0)
    assert not small.done()  # it would fit, but came later
    with pytest.raises(TransferError):
        pool.take_now(1)
    pool.give(first)
    assert len(await large) == 7
    pool.give(await small)
    pool.give(large.result())
    assert pool.num_free == 8


async def test_whoever_gives_up_lets_the_next_one_in() -> None:
    pool = StagingPool(4)
    held = pool.take_now(2)
    waiting = asyncio.create_task(pool.take(3, 5))
    await asyncio.sleep(0)
    behind = asyncio.create_task(pool.take(2, 5))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    pool.give(await behind)
    pool.give(held)
    assert pool.num_free == 4
    with pytest.raises(TransferError) as caught:
        await pool.take(5, 5)
    assert caught.value.reason is TransferFailure.OVERSIZED
    held = pool.take_now(1)
    with pytest.raises(TransferError) as caught:
        await pool.take(4, 0.01)
    assert caught.value.reason is TransferFailure.TIMEOUT
    assert pool.num_free == 3


def test_blocks_are_moved_in_pieces_and_runs() -> None:
    cache = torch.arange(NUM_BLOCKS * LAYOUT.block_bytes // 2).half().view(CACHE_SHAPE)
    expected = cache.clone()
    staging = KVStaging(cache, LAYOUT, 8)
    staging._bounce = staging._bounce[:3]
    blocks, host_blocks = [9, 4, 30, 2, 17, 0, 5], [0, 1, 5, 6, 7, 3, 2]
    staging.to_host(blocks, host_blocks)
    cache[:] = -1
    staging.to_device(host_blocks[::-1], blocks[::-1])
    assert torch.equal(cache[blocks], expected[blocks])
    assert (cache[[i for i in range(NUM_BLOCKS) if i not in blocks]] == -1).all()
    staging.close()
