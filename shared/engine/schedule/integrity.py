"""Whether a scheduler's bookkeeping contradicts itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.engine.sequence.sequence import Status
from shared.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.engine.schedule.scheduler import Scheduler


def check_scheduler(scheduler: Scheduler, *, draft_blocks: Iterable[int] = ()) -> None:
    """Raise InternalError if a sequence is lost, or in two places, or a block is.

    `draft_blocks` are held by a proposer.
    """
    s = scheduler
    placed = [*s.running, *s.loading.values(), *s.receiving.values(), *s.held.values()]
    waiting = [seq for seq in s.sequences.values() if seq.status is Status.WAITING]
    if len(waiting) != len(s.waiting) or len(placed) + len(waiting) != len(s.sequences):
        raise InternalError("scheduler: a sequence is in no place, or in two")
    for seq in placed:
        if seq.num_computed_tokens > seq.num_blocks * s.blocks.block_size:
            raise InternalError(f"scheduler: {seq.request_id} has KV without blocks")
    if any(seq.num_blocks or seq.num_computed_tokens for seq in waiting):
        raise InternalError("scheduler: a waiting sequence has blocks or progress")
    if any(not seq.num_in_flight_tokens for seq in s.draining):
        raise InternalError("scheduler: a sequence drains for ever")
    s.blocks.check_integrity([*placed, *s.draining], draft_blocks)
