"""The order in which waiting sequences are admitted. The head is never overtaken."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from shared.engine.sequence.sequence import Sequence


class WaitingQueue(Protocol):
    """Sequences without blocks."""

    def add(self, seq: Sequence) -> None:
        """Queue a new sequence."""
        ...

    def put_back(self, seq: Sequence) -> None:
        """Queue a preempted sequence before all others of its rank."""
        ...

    def head(self) -> Sequence | None:
        """Return the sequence to admit next; None if the queue is empty."""
        ...

    def remove(self, seq: Sequence) -> None:
        """Remove a sequence that is in the queue."""
        ...

    def __len__(self) -> int: ...


class FcfsQueue:
    """First come, first served."""

    def __init__(self) -> None:
        self._queue: OrderedDict[str, Sequence] = OrderedDict()

    def add(self, seq: Sequence) -> None:
        """Queue a sequence at the end."""
        self._queue[seq.request_id] = seq

    def put_back(self, seq: Sequence) -> None:
        """Queue a sequence at the front."""
        self._queue[seq.request_id] = seq
        self._queue.move_to_end(seq.request_id, last=False)

    def head(self) -> Sequence | None:
        """Return the sequence that has waited longest."""
        return next(iter(self._queue.values()), None)

    def remove(self, seq: Sequence) -> None:
        """Remove a sequence, in O(1)."""
        del self._queue[seq.request_id]

    def __len__(self) -> int:
        return len(self._queue)


class PriorityQueue:
    """Lowest (priority, arrival) first. A preempted sequence keeps its arrival."""

    def __init__(self) -> None:
        # Removed sequences stay in the heap until they reach its top.
        self._heap: list[tuple[int, int, Sequence]] = []
        self._present: dict[str, Sequence] = {}

    def add(self, seq: Sequence) -> None:
        """Queue a sequence by its priority and arrival."""
        self._present[seq.request_id] = seq
        heapq.heappush(self._heap, (seq.request.priority, seq.arrival, seq))

    def put_back(self, seq: Sequence) -> None:
        """Queue a sequence by its priority and arrival."""
        self.add(seq)

    def head(self) -> Sequence | None:
        """Return the most urgent sequence."""
        while self._heap:
            seq = self._heap[0][2]
            if self._present.get(seq.request_id) is seq:
                return seq
            heapq.heappop(self._heap)
        return None

    def remove(self, seq: Sequence) -> None:
        """Remove a sequence, in O(1), or O(log n) if it is the head."""
        del self._present[seq.request_id]
        if self._heap[0][2] is seq:
            heapq.heappop(self._heap)

    def __len__(self) -> int:
        return len(self._present)
