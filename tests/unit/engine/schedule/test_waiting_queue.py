"""The queues: order, putting back, removing from anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.engine.schedule.waiting_queue import FcfsQueue, RankedQueue, WaitingQueue, by_priority
from shared.engine.sequence.sequence import Sequence
from shared.kv.identity import KVIdentity
from tests.fakes.engine.engines import make_request

if TYPE_CHECKING:
    from collections.abc import Callable


def make_sequence(arrival: int, priority: int = 0) -> Sequence:
    request = make_request(str(arrival), [1], priority=priority)
    return Sequence(request, arrival=arrival, identity=KVIdentity(bytes(32)))


def drained(queue: WaitingQueue) -> list[int]:
    order = []
    while (seq := queue.head()) is not None:
        queue.remove(seq)
        order.append(seq.arrival)
    assert len(queue) == 0
    return order


def test_first_come_first_served() -> None:
    queue = FcfsQueue()
    seqs = [make_sequence(i) for i in range(4)]
    for seq in seqs[1:]:
        queue.add(seq)
    queue.remove(seqs[2])
    queue.put_back(seqs[0])
    assert len(queue) == 3
    # Back in any order, each has its place.
    queue.remove(seqs[3])
    queue.add(make_sequence(4))
    for back in (seqs[3], seqs[2]):
        queue.put_back(back)
    assert drained(queue) == [0, 1, 2, 3, 4]


def test_priority_then_age() -> None:
    queue = RankedQueue(by_priority)
    seqs = [make_sequence(i, priority) for i, priority in enumerate((1, 0, 1, -5, 0))]
    for seq in seqs[1:]:
        queue.add(seq)
    queue.remove(seqs[4])
    queue.put_back(seqs[0])
    assert drained(queue) == [3, 1, 0, 2]


@pytest.mark.parametrize("make", [FcfsQueue, lambda: RankedQueue(by_priority)])
@given(steps=st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=40))
def test_whoever_comes_and_goes(
    make: Callable[[], WaitingQueue], steps: list[tuple[int, bool]]
) -> None:
    queue = make()
    seqs = [make_sequence(i, i % 3) for i in range(6)]
    present: set[int] = set()
    for number, front in steps:
        seq = seqs[number]
        if number in present:
            queue.remove(seq)
            present.remove(number)
        else:
            (queue.put_back if front else queue.add)(seq)
            present.add(number)
        assert len(queue) == len(present)
    assert set(drained(queue)) == present
