"""The connector suite on `nixl` over a tensor, as on a device, and what is different there."""

from __future__ import annotations

import asyncio
import importlib.util
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch

from shared.connector.instrumented import TransferCounters
from shared.connector.nixl import lane as lanes
from shared.connector.nixl.connector import NixlConnector
from shared.connector.nixl.pump import Pump
from shared.engine.memory.device_blocks import DeviceBlocks
from shared.engine.memory.kv_staging import KVStaging
from shared.engine.offload.landings import LandingRefusal
from shared.errors import TransferError, TransferFailure
from shared.identity import WorkerId
from shared.kv.memory import KVMemory
from shared.kv.split import KVSplit
from shared.worker.peers.connectors import open_connectors
from tests.integration.connector.harnesses import NixlHarness
from tests.integration.connector.nixl import test_nixl
from tests.suites.connector.behaviour import SOURCES, TARGETS, BehaviourSuite
from tests.suites.connector.frames import GOOD
from tests.suites.connector.harness import LAYOUT, LIMITS, NUM_BLOCKS, a_piece, enter, running
from tests.suites.connector.nixl_on_device import NixlOnDeviceSuite

if TYPE_CHECKING:
    from shared.connector.protocol.limits import TransferLimits

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("nixl") is None, reason="the extra `nixl` is not installed"
)
_warm = test_nixl._warm
#: Long enough for any machine to move on, and a grace that holds up no test.
PATIENT = {"cut_grace_s": 0.02, "max_stall_s": 60.0}


def tensor(memory: KVMemory) -> torch.Tensor:
    """The memory as the cache that it would be on a device."""
    layout = memory.layout
    shape = layout.block_shape(layout.groups[0])
    return torch.frombuffer(memory.buffer, dtype=torch.float16).view(-1, *shape)


class DeviceHarness(NixlHarness):
    """Workers named `host` have theirs on the host."""

    def __init__(self, **limits: float) -> None:
        super().__init__()
        self._limits = PATIENT | limits

    def make(self, worker: WorkerId, memory: KVMemory, limits: TransferLimits) -> NixlConnector:
        if worker.name == "host":
            return super().make(worker, memory, limits)
        limits = replace(limits, **self._limits)
        blocks = DeviceBlocks(tensor(memory), memory.layout)
        return NixlConnector(worker=worker, memory=blocks, limits=limits)


@pytest.fixture
def harness() -> DeviceHarness:
    return DeviceHarness()


class TestDeviceBehaviour(BehaviourSuite):
    pass


class TestDeviceStress(test_nixl.TestNixlStress):
    pass


class TestDeviceProcesses(NixlOnDeviceSuite):
    num_blocks = 16

    @pytest.fixture
    def device(self) -> str:
        return "cpu"


# With this module's harness.
test_lies = test_nixl.test_bytes_that_are_not_as_announced_are_not_believed
test_lost = test_nixl.test_a_lost_sender_can_write_no_more
test_confirmed = test_nixl.test_blocks_stay_taken_until_the_sender_confirms_or_is_cut_off


@pytest.mark.parametrize("names", [("host", "device"), ("device", "host")])
async def test_each_end_has_its_blocks_where_it_likes(
    harness: DeviceHarness, names: tuple[str, str]
) -> None:
    async with running(harness, *names) as [sender, receiver]:
        assert await sender.connector.can_reach(receiver.connector.offer())
        inbound = await receiver.open(sender.id, TARGETS)
        outbound = await sender.connector.connect(inbound.ticket, 5)
        await outbound.push(0, SOURCES)
        assert await outbound.finish(5) == (await inbound.wait(5)).digest
        assert (receiver.blocks[TARGETS] == sender.blocks[SOURCES]).all()


async def test_a_sender_is_told_on_which_device_the_blocks_are(
    harness: DeviceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the number of a device that is not there; NIXL is told of host memory all the same."""
    seen: list[int] = []

    def segment(device: int) -> tuple[str, int]:
        seen.append(device)
        return ("DRAM", 0)

    monkeypatch.setattr(lanes, "_segment", segment)
    monkeypatch.setattr(DeviceBlocks, "device_id", property(lambda _: 3))
    async with running(harness, "host", "device") as [sender, receiver]:
        seen.clear()
        inbound = await receiver.open(sender.id, TARGETS)
        outbound = await sender.connector.connect(inbound.ticket, 5)
        await outbound.push(0, SOURCES)
        await outbound.finish(5)
        await inbound.wait(5)
    # The receiver's lane, then the sender's: its own memory, from there, to there.
    assert seen == [4, 0, 0, 4]


async def test_blocks_are_kept_for_a_while_after_a_cut() -> None:
    """Over CUDA IPC what is posted arrives although our end is closed."""
    limits = replace(LIMITS, release_timeout_s=0.1)
    async with running(DeviceHarness(cut_grace_s=0.5), "receiver", limits=limits) as [receiver]:
        inbound = await receiver.open(test_nixl.SENDER, range(4))
        raw = await enter(NixlHarness(), receiver, inbound)
        raw.polite = False
        await raw.send(a_piece(inbound.ticket, 0, GOOD[:1]).encode(), GOOD[:1])
        started_at = time.monotonic()
        await inbound.abort()
        assert time.monotonic() - started_at > 0.6
        await raw.hang_up()


async def test_a_sender_that_had_stood_still_writes_no_more() -> None:
    """Its receiver may have taken the blocks back, and nothing else would stop it."""
    async with running(DeviceHarness(max_stall_s=1.0), "sender", "host") as [sender, receiver]:
        before = receiver.blocks[TARGETS[2:]].copy()
        inbound = await receiver.open(sender.id, TARGETS)
        outbound = await sender.connector.connect(inbound.ticket, 5)
        await outbound.push(0, SOURCES[:2])
        await test_nixl._until(lambda: inbound.num_blocks_received == 2)
        time.sleep(1.5)  # noqa: ASYNC251 the event loop shall stand still
        with pytest.raises(TransferError) as error:
            await outbound.push(2, SOURCES[2:])
        assert error.value.reason is TransferFailure.PEER_LOST
        await outbound.abort()
        await inbound.abort()
        assert (receiver.blocks[TARGETS[2:]] == before).all()
        sender.connector._pump._max_stall_s = 60.0
        again = await receiver.open(sender.id, TARGETS)
        outbound = await sender.connector.connect(again.ticket, 5)
        await outbound.push(0, SOURCES)
        await outbound.finish(5)


class FakeLane:
    is_busy = is_closed = False

    def __init__(self, name: str, closed: list[str]) -> None:
        self._name, self._closed = name, closed
        self.is_aimed = name == "aimed"

    def close(self) -> None:
        self.is_closed = True
        self._closed.append(self._name)


@pytest.mark.parametrize("speaks", [False, True])
async def test_no_order_is_obeyed_between_a_stall_and_its_end(speaks: bool) -> None:
    """Whichever of the two threads moves on first."""
    pump = Pump(max_stall_s=0.05)
    closed: list[str] = []
    lanes = [FakeLane("aimed", closed), FakeLane("landing", closed)]
    for lane in lanes:
        pump.adopt(lane)  # type: ignore[arg-type]
    time.sleep(0.1)  # noqa: ASYNC251
    if speaks:
        assert not pump.alive()
        assert pump.alive()
    assert await pump.run(lambda: list(closed)) == ["aimed"]
    await asyncio.to_thread(pump.close)


class FakeEngine:
    """As much of an engine on a device as connectors need: its blocks, and the way to the host."""

    rank_places, layout, max_model_len = (), LAYOUT, 16
    kv_split = KVSplit.of(LAYOUT)

    def __init__(self) -> None:
        self.memory = KVMemory(LAYOUT, NUM_BLOCKS)
        self.num_staged = 0

    def device_kv(self) -> DeviceBlocks:
        return DeviceBlocks(tensor(self.memory), LAYOUT)

    def refuse_landings(self, reason: LandingRefusal) -> None:
        assert reason is LandingRefusal.CONNECTOR

    def stage_kv(self, num_host_blocks: int) -> KVStaging:
        self.num_staged += 1
        return KVStaging(tensor(self.memory), LAYOUT, num_host_blocks)


@pytest.mark.parametrize("names", [("nixl",), ("zmq_ipc", "nixl", "shm")])
async def test_a_worker_stages_only_for_connectors_that_need_it(
    names: tuple[str, ...],
) -> None:
    folder = TemporaryDirectory()  # tmp_path may be too long for the name of a socket
    config = SimpleNamespace(
        connectors=names,
        runtime_dir=Path(folder.name),
        host="127.0.0.1",
        transfer_port=0,
        reachable_host="127.0.0.1",
        advertise_transfer_port=None,
        encrypts_transfers=False,
        transfer_packing="auto",
        transfer_staging_bytes=NUM_BLOCKS * LAYOUT.block_bytes,
    )
    engines, ids = (FakeEngine(), FakeEngine()), (WorkerId("a", "1"), WorkerId("b", "1"))
    async with AsyncExitStack() as stack:
        stack.enter_context(folder)
        senders, receivers = [
            (await open_connectors(config, id_, engine, TransferCounters(), stack)).all_connectors  # type: ignore[arg-type]
            for id_, engine in zip(ids, engines, strict=True)
        ]
        assert [connector.name for connector in senders] == list(names)
        for number, (sender, receiver) in enumerate(zip(senders, receivers, strict=True), start=1):
            engines[0].memory.blocks[SOURCES] = number
            inbound = await receiver.open(request_id="r", sender=ids[0], blocks=TARGETS)
            outbound = await sender.connect(inbound.ticket, 5)
            await outbound.push(0, SOURCES)
            await outbound.finish(5)
            await inbound.wait(5)
            assert (engines[1].memory.blocks[TARGETS] == number).all()
    assert [engine.num_staged for engine in engines] == [int(len(names) > 1)] * 2
