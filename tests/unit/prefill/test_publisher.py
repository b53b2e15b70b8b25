"""Blocks leave in order, as soon as they are final, and never before."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from baton.v1.prefill_pb2 import PrefillProgress
from services.prefill.publisher import Publisher
from shared.connector.group.whole import WholeOutbound
from shared.errors import TransferError, TransferFailure

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCKS = (10, 11, 12, 13, 14)


class Recorder:
    """An outbound transfer that notes what it is given."""

    def __init__(self, error: Exception | None = None) -> None:
        self.pushed: list[tuple[int, tuple[int, ...]]] = []
        self.aborted = False
        self._error = error

    async def push(self, first_index: int, blocks: Sequence[int]) -> None:
        if self._error is not None:
            raise self._error
        self.pushed.append((first_index, tuple(blocks)))

    async def finish(self, timeout_s: float) -> int:
        return len(self.pushed)

    async def abort(self) -> None:
        self.aborted = True


def publish(recorder: Recorder, moved: range, progress: PrefillProgress) -> Publisher:
    return Publisher(
        WholeOutbound(recorder, moved=(moved,), block_bytes=1),  # type: ignore[arg-type]
        tables=(BLOCKS,),
        moved=(moved,),
        progress=progress,
    )


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_each_advance_is_one_piece() -> None:
    recorder = Recorder()
    progress = PrefillProgress()
    publisher = publish(recorder, range(5), progress)
    for num_final in (2, 2, 4, 5):
        publisher.advance(num_final)
        await settle()
        assert progress.num_sent_blocks == num_final
    assert await publisher.finish(timeout_s=5) == 3
    assert recorder.pushed == [(0, (10, 11)), (2, (12, 13)), (4, (14,))]


class Slices(Recorder):
    """Of six layers, two in each of three slices; notes group, first block, blocks, slices."""

    num_slices = 3

    def final_slices(self, group: int, num_layers: int) -> int:
        del group
        return num_layers // 2

    async def push(  # type: ignore[override]
        self, group: int, first_block: int, blocks: Sequence[int], slices: range
    ) -> None:
        self.pushed.append((group, first_block, tuple(blocks), slices))  # type: ignore[arg-type]


async def test_layers_of_the_last_blocks_are_sent_once_and_before_the_others_are_final() -> None:
    """The second group has states, which are final at the end."""
    outbound, progress = Slices(), PrefillProgress()
    moved = (range(1, 5), range(4, 5))
    publisher = Publisher(
        outbound,  # type: ignore[arg-type]
        tables=(BLOCKS, BLOCKS[::-1]), moved=moved, progress=progress,
    )  # fmt: skip
    publisher.advance(2)
    await settle()
    for num_layers, num_pushed in ((1, 1), (2, 2), (3, 2), (5, 3)):
        publisher.advance_layers((num_layers, 0))
        await settle()
        assert len(outbound.pushed) == num_pushed
    assert progress.num_sent_blocks == 1
    publisher.advance(5)
    await publisher.finish(timeout_s=5)
    assert outbound.pushed == [
        (0, 1, (11,), range(3)),
        (0, 2, (12, 13, 14), range(1)),
        (0, 2, (12, 13, 14), range(1, 2)),
        (0, 2, (12, 13, 14), range(2, 3)),
        (1, 4, (10,), range(3)),
    ]
    assert progress.num_sent_blocks == 5


async def test_a_step_that_is_over_before_its_layers_are_sent_is_sent_whole() -> None:
    outbound = Slices()
    publisher = Publisher(
        outbound,  # type: ignore[arg-type]
        tables=(BLOCKS,), moved=(range(5),), progress=PrefillProgress(),
    )  # fmt: skip
    publisher.advance(3)
    publisher.advance_layers((4,))
    publisher.advance(5)
    await publisher.finish(timeout_s=5)
    assert outbound.pushed == [(0, 0, BLOCKS, range(3))]


async def test_blocks_that_the_receiver_holds_are_skipped() -> None:
    recorder = Recorder()
    publisher = publish(recorder, range(3, 5), PrefillProgress())
    publisher.advance(2)
    await settle()
    assert recorder.pushed == []
    publisher.advance(5)
    await publisher.finish(timeout_s=5)
    assert recorder.pushed == [(0, (13, 14))]


async def test_nothing_is_sent_before_it_is_final() -> None:
    recorder = Recorder()
    publisher = publish(recorder, range(5), PrefillProgress())
    publisher.advance(4)
    await settle()
    with pytest.raises(TransferError, match="4 of 5 blocks"):
        await publisher.finish(timeout_s=0.01)
    await publisher.close()
    assert recorder.pushed == [(0, (10, 11, 12, 13))]
    assert recorder.aborted


async def test_a_refusal_is_reported_at_the_end() -> None:
    refusal = TransferError(TransferFailure.UNKNOWN_TICKET, "gone")
    publisher = publish(Recorder(refusal), range(5), PrefillProgress())
    publisher.advance(5)
    with pytest.raises(TransferError, match="gone"):
        await publisher.finish(timeout_s=5)
    await publisher.close()
