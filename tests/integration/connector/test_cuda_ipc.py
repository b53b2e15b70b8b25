"""The connector suite on `cuda_ipc` over memory of the host, and what only it can do wrong."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
import torch

from shared.connector.device.cuda_ipc import CudaIpcConnector
from shared.connector.device.io import PeerDevice
from shared.connector.protocol.frame import Frame, Kind
from shared.engine.memory.cuda_blocks import CudaBlocks
from shared.errors import ConfigError, TransferError, TransferFailure
from shared.identity import WorkerId
from shared.kv.memory import KVMemory
from tests.fakes.host_device import MappedHost
from tests.fakes.host_ipc import HostIpc
from tests.integration.connector.cuda_ipc_harness import CudaIpcHarness
from tests.integration.connector.harnesses import with_sources
from tests.suites.connector import BehaviourSuite
from tests.suites.connector_frames import FrameSuite
from tests.suites.connector_harness import (
    BLOCK_BYTES,
    LAYOUT,
    NUM_BLOCKS,
    a_piece,
    enter,
    expect,
    greet,
    running,
    some_blocks,
)
from tests.suites.connector_stress import StressSuite

if TYPE_CHECKING:
    from pathlib import Path

    from shared.connector.protocol.limits import TransferLimits
    from shared.connector.protocol.transport import Transport

SENDER = WorkerId("sender", "1")


@pytest.fixture
def harness(tmp_path: Path) -> CudaIpcHarness:
    tmp_path.chmod(0o700)
    return CudaIpcHarness(tmp_path)


class TestCudaIpcFrames(FrameSuite):
    pass


class TestCudaIpcBehaviour(BehaviourSuite):
    pass


class TestCudaIpcStress(StressSuite):
    pass


class BlocksHarness(CudaIpcHarness):
    """With the `CudaBlocks` of the engine, on a device of type cpu, over a driver of the host."""

    def make(self, worker: WorkerId, memory: KVMemory, limits: TransferLimits) -> Transport:
        connector = CudaIpcConnector(
            worker=worker, memory=cuda_blocks(memory), runtime_dir=self.runtime_dir, limits=limits
        )
        return cast("Transport", connector)


def cuda_blocks(memory: KVMemory, driver: HostIpc | None = None, *, first: int = 0) -> CudaBlocks:
    """Those of `memory` from `first` on."""
    layout = memory.layout
    shape = (layout.num_layers, 2, layout.num_kv_heads, layout.block_size, layout.head_dim)
    flat = torch.frombuffer(memory.buffer, dtype=torch.float16)
    cache = flat.view(-1, *shape)[first:]
    return CudaBlocks(cache, memory.layout, driver or HostIpc(memory))


class TestCudaBlocks(BehaviourSuite):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> CudaIpcHarness:
        return BlocksHarness(tmp_path / "run")


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"body": b"/proc/self/fd/9999"}, TransferFailure.CORRUPT),
        ({"num_blocks": NUM_BLOCKS - 1}, TransferFailure.LAYOUT_MISMATCH),
        ({"num_blocks": 0, "length": 0}, TransferFailure.LAYOUT_MISMATCH),
        ({"num_blocks": 8, "length": 8 * BLOCK_BYTES}, TransferFailure.LAYOUT_MISMATCH),
    ],
)
async def test_a_door_that_leads_nowhere_ends_the_connection(
    harness: CudaIpcHarness, overrides: dict[str, Any], reason: TransferFailure
) -> None:
    async with running(harness, "receiver") as [receiver]:
        raw = await greet(harness, receiver, SENDER)
        raw.honest = False
        await expect(raw, Kind.GRANT)
        await raw.send(replace(raw.door(), **overrides).encode())
        assert (await expect(raw, Kind.REFUSE)).reason is reason
        assert receiver.connector.refusals == {reason: 1}
        await raw.hang_up()


async def test_no_memory_of_a_stranger_is_opened(harness: CudaIpcHarness) -> None:
    async with running(harness, "receiver") as [receiver]:
        raw = await harness.raw(receiver.connector.offer().address)
        await raw.send(raw.door().encode())
        assert (await expect(raw, Kind.REFUSE)).reason is TransferFailure.UNKNOWN_TICKET
        await raw.hang_up()


async def test_a_second_door_is_refused(harness: CudaIpcHarness) -> None:
    async with running(harness, "receiver") as [receiver]:
        raw = await greet(harness, receiver, SENDER)
        await expect(raw, Kind.GRANT)
        await raw.send(Frame(kind=Kind.DOOR, num_blocks=1, length=BLOCK_BYTES).encode())
        assert (await expect(raw, Kind.REFUSE)).reason is TransferFailure.CORRUPT
        await raw.hang_up()


async def test_a_piece_from_blocks_that_do_not_exist_is_refused(harness: CudaIpcHarness) -> None:
    async with running(harness, "receiver") as [receiver]:
        inbound = receiver.open(SENDER, [0])
        raw = await enter(harness, receiver, inbound)
        frame = a_piece(inbound.ticket, 0, some_blocks(1))
        await raw.send(with_sources(frame.encode(), [NUM_BLOCKS]))
        assert (await expect(raw, Kind.REFUSE)).reason is TransferFailure.OUT_OF_RANGE
        with pytest.raises(TransferError):
            await inbound.wait(5)
        await raw.hang_up()


async def test_a_peer_stays_mapped_until_nothing_copies_from_it(
    harness: CudaIpcHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender goes in the middle of a copy: the mapping outlives the copy."""
    copying, go_on = threading.Event(), threading.Event()
    copy, events = MappedHost.copy, []

    def held(*args: Any) -> None:
        copying.set()
        assert go_on.wait(5)
        copy(*args)
        events.append("copied")

    close = PeerDevice.close

    def closing(peer: PeerDevice) -> None:
        close(peer)
        events.append("unmapped")

    monkeypatch.setattr(MappedHost, "copy", held)
    monkeypatch.setattr(PeerDevice, "close", closing)
    async with running(harness, "receiver") as [receiver]:
        inbound = receiver.open(SENDER, range(2))
        raw = await enter(harness, receiver, inbound)
        await raw.send(a_piece(inbound.ticket, 0, some_blocks(1)).encode(), some_blocks(1))
        await asyncio.to_thread(copying.wait, 5)
        raw._packets.close()
        waiting = asyncio.create_task(inbound.wait(5))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        go_on.set()
        with pytest.raises(TransferError) as error:
            await waiting
        assert error.value.reason is TransferFailure.PEER_LOST
        raw._memory.close()
        await asyncio.get_running_loop().shutdown_default_executor()
    assert events == ["copied", "unmapped"]


async def test_only_peers_of_the_same_device_are_in_reach(harness: CudaIpcHarness) -> None:
    async with running(harness, "one", "two") as [one, two]:
        offer = two.connector.offer()
        assert one.connector.can_reach(offer)
        for name, value in (("boot_id", "x"), ("device.uuid", "two"), ("device.driver", "cuda")):
            assert name in offer.params
            elsewhere = replace(offer, params={**offer.params, name: value})
            assert not one.connector.can_reach(elsewhere)


def test_the_device_sums_every_word() -> None:
    memory = new_memory()
    memory.blocks[:] = np.random.default_rng(0).integers(0, 256, memory.blocks.shape, np.uint8)
    memory.blocks[3] = memory.blocks[2]
    blocks = cuda_blocks(memory)
    before = blocks.checksums(range(NUM_BLOCKS))
    assert before.dtype == np.uint64
    assert len(set(before.tolist())) == NUM_BLOCKS - 1
    assert before[2] == before[3]
    for at in (0, BLOCK_BYTES // 2, BLOCK_BYTES - 1):
        memory.blocks[5, at] ^= 0x80
        (after,) = blocks.checksums([5])
        assert after != before[5]
        memory.blocks[5, at] ^= 0x80
    words = memory.blocks[6].view(np.uint64)
    words[[0, 1]] = words[[1, 0]]
    assert blocks.checksums([6])[0] != before[6]
    del words, blocks
    memory.close()


def test_a_cache_that_begins_within_an_allocation_is_found_there() -> None:
    memory, other = new_memory(), new_memory()
    memory.blocks[:] = np.arange(NUM_BLOCKS, dtype=np.uint8)[:, None]
    driver = HostIpc(memory)
    sender, receiver = cuda_blocks(memory, driver, first=4), cuda_blocks(other, HostIpc(other))
    peer = receiver.open(sender.export(), sender.num_blocks)
    peer.copy([0, 7, 1], [9, 2, 30])
    assert other.blocks[[9, 2, 30], 0].tolist() == [4, 11, 5]
    assert not other.blocks[[i for i in range(NUM_BLOCKS) if i not in (9, 2, 30)]].any()
    peer.close()
    with pytest.raises(TransferError) as error:
        receiver.open(sender.export(), NUM_BLOCKS)
    assert error.value.reason is TransferFailure.LAYOUT_MISMATCH
    assert not receiver._driver.opened  # type: ignore[attr-defined]
    with pytest.raises(TransferError) as error:
        receiver.open(b"short", 1)
    assert error.value.reason is TransferFailure.CORRUPT
    memory.close()
    with pytest.raises(TransferError) as error:
        receiver.open(sender.export(), 1)
    assert error.value.reason is TransferFailure.CORRUPT
    with pytest.raises(ConfigError, match="cannot share"):
        cuda_blocks(other, driver)
    del sender, receiver
    other.close()


def new_memory() -> KVMemory:
    return KVMemory(LAYOUT, NUM_BLOCKS)
