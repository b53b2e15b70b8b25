"""The receiver's state machine, without any transport."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shared.connector.base import Ticket
from shared.connector.protocol import block_io
from shared.connector.protocol.block_copy import checksum_blocks
from shared.connector.protocol.block_io import Activity, BlockIO
from shared.connector.protocol.checksum import piece_checksum
from shared.connector.protocol.inbound import Inbound
from shared.errors import TransferError, TransferFailure
from shared.identity import WorkerId
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from tests.suites.connector.harness import (
    BLOCK_BYTES,
    LAYOUT,
    NUM_BLOCKS,
    a_piece,
    checksum,
    digest,
    some_blocks,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCKS = [4, 2, 9]
DATA = some_blocks(3)
DIGEST = digest(DATA[:1], DATA[1:])


@pytest.fixture
def io() -> Iterator[BlockIO]:
    memory = KVMemory(LAYOUT, NUM_BLOCKS)
    io = BlockIO(memory)
    yield io
    io.close()
    memory.close()


@pytest.fixture
def ends() -> list[Inbound]:
    return []


@pytest.fixture
def inbound(io: BlockIO, ends: list[Inbound]) -> Inbound:
    ticket = Ticket(
        transfer_id=bytes(16),
        connector="test",
        address="nowhere",
        request_id="request-1",
        sender=WorkerId("sender", "1"),
        receiver=WorkerId("receiver", "1"),
        num_blocks=len(BLOCKS),
        layout=LAYOUT,
    )
    return Inbound(ticket, BLOCKS, io, ends.append)


async def _accept(inbound: Inbound, first: int, end: int) -> None:
    payload = DATA[first:end]
    rows = [np.frombuffer(block, np.uint8) for block in payload]
    await inbound.accept(a_piece(inbound.ticket, first, payload), rows)


async def test_it_ends_when_all_is_there_and_the_sender_is_done(
    inbound: Inbound, io: BlockIO, ends: list[Inbound]
) -> None:
    await _accept(inbound, 1, 3)
    await _accept(inbound, 0, 1)
    assert not inbound.ended
    inbound.done(DIGEST)
    receipt = await inbound.wait(1)
    assert ends == [inbound]
    assert (receipt.digest, receipt.num_blocks, receipt.num_pieces) == (DIGEST, 3, 2)
    assert receipt.num_bytes == receipt.num_copied_bytes == 3 * BLOCK_BYTES
    assert receipt.duration_ms >= 0
    assert io._rows[BLOCKS].tobytes() == b"".join(DATA)


async def test_done_too_early_or_with_another_digest_is_refused(inbound: Inbound) -> None:
    for end, said, reason in (
        (2, DIGEST, TransferFailure.INCOMPLETE),
        (3, DIGEST + 1, TransferFailure.CORRUPT),
    ):
        await _accept(inbound, 0 if end == 2 else 2, end)
        with pytest.raises(TransferError) as error:
            inbound.done(said)
        assert error.value.reason is reason


async def test_the_first_end_counts(inbound: Inbound, ends: list[Inbound]) -> None:
    inbound.fail(TransferFailure.CORRUPT, "first")
    inbound.fail(TransferFailure.TIMEOUT, "second")
    await inbound.abort()
    with pytest.raises(TransferError, match="request-1") as error:
        await inbound.wait(1)
    assert error.value.reason is TransferFailure.CORRUPT
    assert ends == [inbound]


async def test_success_cannot_be_undone(inbound: Inbound) -> None:
    await _accept(inbound, 0, 3)
    inbound.done(digest(DATA))
    await inbound.abort()
    assert (await inbound.wait(0)).digest == digest(DATA)


async def test_a_deadline_that_passes_ends_it(inbound: Inbound) -> None:
    with pytest.raises(TransferError) as error:
        await inbound.wait(0)
    assert error.value.reason is TransferFailure.TIMEOUT
    assert inbound.ended


async def test_a_block_counts_only_once_verified(inbound: Inbound) -> None:
    rows = [np.frombuffer(block, np.uint8) for block in DATA]
    frame = a_piece(inbound.ticket, 0, DATA, digest=checksum(DATA[::-1]))
    with pytest.raises(TransferError) as error:
        await inbound.accept(frame, rows)
    assert error.value.reason is TransferFailure.CORRUPT
    assert inbound.num_blocks_received == 0


async def test_large_pieces_are_copied_off_the_loop_and_small_ones_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[bool] = []
    copy = block_io.copy_blocks

    def watched(targets: list[np.ndarray], sources: list[np.ndarray]) -> np.ndarray:
        threads.append(threading.current_thread() is threading.main_thread())
        return copy(targets, sources)

    monkeypatch.setattr(block_io, "copy_blocks", watched)
    layout = KVLayout.single(
        num_layers=4, num_kv_heads=8, block_size=16, head_dim=256, dtype="float16"
    )
    assert layout.block_bytes == block_io.INLINE_BYTES // 2
    memory = KVMemory(layout, 8)
    io = BlockIO(memory)
    source = np.ones(layout.block_bytes, np.uint8)
    await io.write([0, 1], [source] * 2, Activity())
    await io.write([0, 1, 2], [source] * 3, Activity())
    assert threads == [True, False]
    io.close()
    memory.close()


@pytest.mark.parametrize("num_layers", [1, 9, 40])
@pytest.mark.parametrize("targets", [[1, 2, 3, 4], [4, 2, 3, 0], [3, 1, 4, 2]])
async def test_bytes_and_checksum_are_the_same_however_a_piece_is_cut(
    num_layers: int, targets: list[int]
) -> None:
    layout = KVLayout.single(
        num_layers=num_layers, num_kv_heads=8, block_size=16, head_dim=128, dtype="float32"
    )
    memory = KVMemory(layout, 5)
    io = BlockIO(memory)
    rng = np.random.default_rng(num_layers)
    data = rng.integers(0, 256, (4, layout.block_bytes), np.uint8)
    for sources in ([data.reshape(-1)], list(data), [data[0], data[1:].reshape(-1)]):
        memory.blocks[:] = 0
        activity = Activity()
        written = await io.write(targets, sources, activity)
        assert written == piece_checksum(checksum_blocks(list(data)))
        assert written == await io.checksum(targets, Activity())
        assert (memory.blocks[targets] == data).all()
        assert activity.num_copied_bytes == data.size
        (other,) = set(range(5)) - set(targets)
        assert not memory.blocks[other].any()
    io.close()
    memory.close()


async def test_neighbouring_blocks_are_one_part() -> None:
    memory = KVMemory(LAYOUT, 8)
    io = BlockIO(memory)
    sizes = [part.size // BLOCK_BYTES for part in io.payload([3, 4, 5, 7, 0, 1, 6])]
    assert sizes == [3, 1, 2, 1]
    io.close()
    memory.close()


async def test_stopped_work_writes_nothing_more() -> None:
    memory = KVMemory(LAYOUT, 2)
    io = BlockIO(memory)
    activity = Activity()
    await activity.stop()
    assert await io.write([0], [np.ones(BLOCK_BYTES, np.uint8)], activity) is None
    assert await io.checksum([0], activity) is None
    assert not memory.blocks.any()
    io.close()
    memory.close()


async def test_cancelling_who_waits_leaves_the_work_to_its_activity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def held(parts: object) -> int:
        begun.set()
        go_on.wait(5)
        return 0

    monkeypatch.setattr(block_io, "piece_checksum", held)
    monkeypatch.setattr(block_io, "INLINE_BYTES", 0)
    memory = KVMemory(LAYOUT, 2)
    io = BlockIO(memory)
    activity = Activity()
    reading = asyncio.create_task(io.checksum([0, 1], activity))
    await asyncio.to_thread(begun.wait, 5)
    reading.cancel()
    await asyncio.wait([reading])
    stopping = asyncio.create_task(activity.stop())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not stopping.done()
    go_on.set()
    await stopping
    io.close()
    memory.close()
