"""The order in which waiting sequences are admitted. The head is never overtaken."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from itertools import takewhile
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.engine.sequence.sequence import Sequence

    #: Compared field by field; ends with the arrival.
    Rank = tuple[float, ...]


class WaitingQueue(Protocol):
    """Sequences without blocks."""

    def add(self, seq: Sequence) -> None:
        """Queue a new sequence."""
        ...

    def put_back(self, seq: Sequence) -> None:
        """Queue a sequence that was in the queue before, at its place in the order."""
        ...

    def head(self) -> Sequence | None:
        """Return the sequence to admit next; None if the queue is empty."""
        ...

    def remove(self, seq: Sequence) -> None:
        """Remove a sequence that is in the queue."""
        ...

    def __len__(self) -> int: ...


class FcfsQueue:
    """First come, first served: in the order of arrival. New sequences come in this order."""

    def __init__(self) -> None:
        self._queue: OrderedDict[str, Sequence] = OrderedDict()

    def add(self, seq: Sequence) -> None:
        """Queue a sequence at the end."""
        self._queue[seq.request_id] = seq

    def put_back(self, seq: Sequence) -> None:
        """Queue a sequence behind those that arrived before it: few, since it has waited."""
        earlier = list(takewhile(lambda one: one.arrival < seq.arrival, self._queue.values()))
        self._queue[seq.request_id] = seq
        for one in (seq, *reversed(earlier)):
            self._queue.move_to_end(one.request_id, last=False)

    def head(self) -> Sequence | None:
        """Return the sequence that has waited longest."""
        return next(iter(self._queue.values()), None)

    def remove(self, seq: Sequence) -> None:
        """Remove a sequence, in O(1)."""
        del self._queue[seq.request_id]

    def __len__(self) -> int:
        return len(self._queue)


def by_priority(seq: Sequence) -> Rank:
    """Return the place of a sequence in the order of priority, then arrival."""
    return seq.request.priority, seq.arrival


class RankedQueue:
    """Lowest rank first. A sequence's rank must not change while it is in the queue."""

    def __init__(self, rank: Callable[[Sequence], Rank]) -> None:
        """`rank` ends with the sequence's arrival, so that no two ranks are equal."""
        self._rank = rank
        # Removed sequences stay in the heap until they reach its top.
        self._heap: list[tuple[Rank, Sequence]] = []
        self._present: dict[str, Sequence] = {}

    def add(self, seq: Sequence) -> None:
        """Queue a sequence by its rank."""
        self._present[seq.request_id] = seq
        heapq.heappush(self._heap, (self._rank(seq), seq))

    def put_back(self, seq: Sequence) -> None:
        """Queue a sequence by its rank."""
        self.add(seq)

    def head(self) -> Sequence | None:
        """Return the most urgent sequence."""
        while self._heap:
            seq = self._heap[0][1]
            if self._present.get(seq.request_id) is seq:
                return seq
            heapq.heappop(self._heap)
        return None

    def remove(self, seq: Sequence) -> None:
        """Remove a sequence, in O(1), or O(log n) if it is the head."""
        del self._present[seq.request_id]
        if self._heap[0][1] is seq:
            heapq.heappop(self._heap)

    def __len__(self) -> int:
        return len(self._present)
