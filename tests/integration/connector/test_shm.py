"""The connector suite on `shm`, and what only it can do wrong."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from shared.connector.protocol.checksum import layout_fingerprint
from shared.connector.protocol.frame import Kind, decode
from shared.connector.protocol.greeting import hello
from shared.connector.unix.packets import Packets, connect, listen
from shared.errors import ConfigError, TransferError, TransferFailure
from shared.identity import WorkerId
from shared.kv.memory import KVMemory
from tests.integration.connector.harnesses import ShmHarness, with_sources
from tests.suites.connector.behaviour import BehaviourSuite
from tests.suites.connector.frames import FrameSuite
from tests.suites.connector.harness import (
    BLOCK_BYTES,
    LAYOUT,
    NUM_BLOCKS,
    a_done,
    a_piece,
    enter,
    expect,
    running,
    some_blocks,
)
from tests.suites.connector.stress import StressSuite


@pytest.fixture
def harness(tmp_path: Path) -> ShmHarness:
    tmp_path.chmod(0o700)
    return ShmHarness(tmp_path)


class TestShmFrames(FrameSuite):
    pass


class TestShmBehaviour(BehaviourSuite):
    pass


class TestShmStress(StressSuite):
    pass


async def test_a_memory_that_could_shrink_is_not_mapped(harness: ShmHarness) -> None:
    fd = os.memfd_create("unsealed", os.MFD_CLOEXEC)
    os.ftruncate(fd, NUM_BLOCKS * BLOCK_BYTES)
    try:
        await _refused(harness, fd, TransferFailure.CORRUPT)
    finally:
        os.close(fd)


async def test_a_file_that_is_no_memory_is_not_mapped(harness: ShmHarness) -> None:
    fd = os.open("/dev/null", os.O_RDONLY)
    try:
        await _refused(harness, fd, TransferFailure.CORRUPT)
    finally:
        os.close(fd)


async def test_a_memory_of_another_size_is_not_mapped(harness: ShmHarness) -> None:
    memory = KVMemory(LAYOUT, NUM_BLOCKS - 1)
    try:
        await _refused(harness, memory.fd, TransferFailure.LAYOUT_MISMATCH)
    finally:
        memory.close()


async def test_a_greeting_without_a_memory_is_refused(harness: ShmHarness) -> None:
    await _refused(harness, None, TransferFailure.CORRUPT)


async def _refused(harness: ShmHarness, fd: int | None, reason: TransferFailure) -> None:
    sender = WorkerId("sender", "1")
    async with running(harness, "receiver") as [receiver]:
        packets = Packets(connect(Path(receiver.connector.offer().address)))
        greeting = hello(
            sender=sender,
            receiver=receiver.id,
            layout=layout_fingerprint(LAYOUT),
            num_blocks=NUM_BLOCKS,
            num_bytes=NUM_BLOCKS * BLOCK_BYTES,
        )
        packets.send(greeting.encode(), () if fd is None else (fd,))
        data, _ = await packets.receive()
        assert decode(data).reason is reason
        assert (await packets.receive())[0] == b""
        assert receiver.connector.refusals == {reason: 1}
        packets.close()


async def test_a_piece_from_blocks_that_do_not_exist_is_refused(harness: ShmHarness) -> None:
    async with running(harness, "receiver") as [receiver]:
        inbound = await receiver.open(WorkerId("sender", "1"), [0])
        raw = await enter(harness, receiver, inbound)
        frame = a_piece(inbound.ticket, 0, some_blocks(1))
        await raw.send(with_sources(frame.encode(), [NUM_BLOCKS]))
        assert (await expect(raw, Kind.REFUSE)).reason is TransferFailure.OUT_OF_RANGE
        with pytest.raises(TransferError):
            await inbound.wait(5)
        await raw.hang_up()


async def test_descriptors_that_nobody_asked_for_are_closed(harness: ShmHarness) -> None:
    async with running(harness, "receiver") as [receiver]:
        inbound = await receiver.open(WorkerId("sender", "1"), [0])
        raw = await enter(harness, receiver, inbound)
        frame = a_done(inbound.ticket, [])
        raw._packets.send(frame.encode(), (raw._memory.fd,))
        await expect(raw, Kind.REFUSE)
        await raw.hang_up()


async def test_folders_with_long_names_are_fine(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 200)
    async with running(ShmHarness(folder), "one", "two") as [one, two]:
        assert await one.connector.can_reach(two.connector.offer())
        inbound = await two.open(one.id, [0])
        outbound = await one.connector.connect(inbound.ticket, 5)
        await outbound.push(0, [1])
        await outbound.finish(5)
    assert folder.stat().st_mode & 0o777 == 0o700


async def test_a_folder_that_others_may_enter_is_refused(harness: ShmHarness) -> None:
    harness.runtime_dir.chmod(0o750)
    with pytest.raises(ConfigError, match="0700"):
        async with running(harness, "one"):
            pass


async def test_stale_sockets_are_removed_and_live_ones_are_not(harness: ShmHarness) -> None:
    stale = harness.runtime_dir / "baton-kv-0123456789abcdef.sock"
    young = harness.runtime_dir / "baton-kv-fedcba9876543210.sock"
    for path in (stale, young):
        listen(path).close()
    os.utime(stale, (0, 0))
    async with running(harness, "live") as [live]:
        os.utime(live.connector.offer().address, (0, 0))
        async with running(harness, "other") as [other]:
            assert await other.connector.can_reach(live.connector.offer())
            assert not stale.exists()
            assert young.exists()
        stale.touch()


async def test_another_host_is_out_of_reach(harness: ShmHarness) -> None:
    async with running(harness, "one", "two") as [one, two]:
        offer = two.connector.offer()
        assert await one.connector.can_reach(offer)
        elsewhere = replace(offer, params={"boot_id": "another"})
        assert not await one.connector.can_reach(elsewhere)
        assert not await one.connector.can_reach(replace(offer, address=offer.address + "x"))
