"""Hand-offs that go wrong: flipped bits, lost pieces, a sender that does not finish."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from services.prefill.publisher import Publisher
from shared.connector.protocol.block_io import BlockIO
from shared.connector.protocol.inbound import Inbound
from shared.errors import TransferError, TransferFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest

    from shared.connector.protocol.frame import Frame
    from shared.engine.sequence.sequence import Sequence as EngineSequence
    from tests.fakes.worker.live_worker import LiveWorker


def flip_a_bit(
    monkeypatch: pytest.MonkeyPatch, worker: LiveWorker, choose: Callable[[EngineSequence], int]
) -> list[int]:
    """Let one block arrive at the worker with another bit, once; return the list of such blocks.

    `choose` returns the block, given the only sequence that receives.
    """
    flipped: list[int] = []
    copy = BlockIO._copy
    block_bytes = worker.parts.layout.block_bytes
    scheduler = worker.parts.engine._engine._scheduler

    def flip(io: BlockIO, blocks: Sequence[int], sources: Sequence[Any]) -> Any:
        (seq,) = scheduler.receiving.values()
        wanted = choose(seq)
        if wanted not in blocks or flipped:
            return copy(io, blocks, sources)
        flipped.append(wanted)
        data = np.concatenate([np.array(source).reshape(-1) for source in sources])
        data[list(blocks).index(wanted) * block_bytes + 5] ^= 4
        return copy(io, blocks, [data])

    monkeypatch.setattr(BlockIO, "_copy", flip)
    return flipped


def lose_a_piece(
    monkeypatch: pytest.MonkeyPatch, worker: LiveWorker, choose: Callable[[EngineSequence], int]
) -> list[int]:
    """Let the first piece with one block not arrive at the worker; return that block in a list.

    `choose` returns the block, given the only sequence that receives. All other frames arrive.
    """
    lost: list[int] = []
    accept = Inbound.accept
    scheduler = worker.parts.engine._engine._scheduler

    async def accept_others(self: Inbound, frame: Frame, sources: Any) -> None:
        piece = self.blocks[frame.first_index : frame.first_index + frame.num_blocks]
        wanted = [choose(seq) for seq in scheduler.receiving.values()]
        if wanted and wanted[0] in piece and not lost:
            lost.append(wanted[0])
        else:
            await accept(self, frame, sources)

    monkeypatch.setattr(Inbound, "accept", accept_others)
    return lost


def send_no_end_of(monkeypatch: pytest.MonkeyPatch, group: int) -> None:
    """Let senders leave out the last block of one group."""
    send = Publisher._send

    async def send_others(self: Publisher, start: int, end: int, slices: list[int]) -> None:
        last = self._moved[group].stop - 1
        tables = enumerate(self._tables)
        self._tables = [table[:last] if n == group else table for n, table in tables]
        await send(self, start, end, slices)

    monkeypatch.setattr(Publisher, "_send", send_others)


def fail_hand_overs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no block of a prompt be sent, and every hand-off fail at its end."""

    async def finish(self: Publisher, timeout_s: float) -> int:
        raise TransferError(TransferFailure.ABORTED, "as the test has it")

    monkeypatch.setattr(Publisher, "advance", lambda *_: None)
    monkeypatch.setattr(Publisher, "finish", finish)
