"""A queue with a lane for each adapter: one that waits for its adapter holds up its lane alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.engine.schedule.waiting_queue import FcfsQueue, RankedQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.engine.schedule.waiting_queue import Rank, WaitingQueue
    from shared.engine.sequence.sequence import Sequence


class AdapterLanes:
    """A `WaitingQueue`. Within a lane the head is never overtaken."""

    def __init__(self, rank: Callable[[Sequence], Rank] | None) -> None:
        """`rank`: the order; None: first come, first served."""
        self._rank = rank
        self._lanes: dict[bytes, WaitingQueue] = {}

    def add(self, seq: Sequence) -> None:
        """Queue a new sequence."""
        self._lane(seq).add(seq)

    def put_back(self, seq: Sequence) -> None:
        """Queue a sequence that was in the queue before, at its place in the order."""
        self._lane(seq).put_back(seq)

    def head(self) -> Sequence | None:
        """Return the head of the first lane."""
        return next(iter(self.heads()), None)

    def heads(self) -> list[Sequence]:
        """Return the head of each lane, in the order of the whole queue."""
        heads = [head for lane in self._lanes.values() if (head := lane.head()) is not None]
        return sorted(heads, key=self._order)

    def remove(self, seq: Sequence) -> None:
        """Remove a sequence that is in the queue."""
        lane = self._lane(seq)
        lane.remove(seq)
        if not len(lane):
            del self._lanes[seq.identity.adapter]

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def _lane(self, seq: Sequence) -> WaitingQueue:
        lane = self._lanes.get(seq.identity.adapter)
        if lane is None:
            lane = FcfsQueue() if self._rank is None else RankedQueue(self._rank)
            self._lanes[seq.identity.adapter] = lane
        return lane

    def _order(self, seq: Sequence) -> Rank:
        return (seq.arrival,) if self._rank is None else self._rank(seq)
