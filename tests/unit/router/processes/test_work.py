"""Books of several processes: each counts what all have booked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from services.router.processes.work import SharedWork
from services.router.workers.endpoint import Endpoint
from services.router.workers.timing.work import NOTHING, Work
from shared.directory.base import WorkerLoad, WorkerRecord
from shared.identity import Role, WorkerId

if TYPE_CHECKING:
    from services.router.processes.link import Link

RECORD = WorkerRecord(
    worker=WorkerId.born("w"),
    role=Role.DECODE,
    address="",
    model="m",
    namespace="ab" * 32,
    block_size=16,
    num_blocks=10,
    max_model_len=512,
)


class Wire:
    """The links of two processes that hear each other at once."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.other: SharedWork | None = None
        self.told: list[Any] = []

    def tell(self, _name: str, body: Any) -> None:
        self.told.append(body)
        if self.other is not None:
            self.other.take(self.number, json.loads(json.dumps(body)))


class Pair:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.endpoints = [Endpoint(record=RECORD, load=WorkerLoad()) for _ in range(2)]
        self.wires: list[Any] = [Wire(0), Wire(1)]
        self.shared = [
            self._share(wire, end) for wire, end in zip(self.wires, self.endpoints, strict=True)
        ]
        self.wires[0].other, self.wires[1].other = self.shared[1], self.shared[0]

    def _share(self, link: Link, endpoint: Endpoint) -> SharedWork:
        return SharedWork(link, lambda: [endpoint], clock=lambda: self.now_s)

    def tell(self) -> None:
        for each in self.shared:
            each.tell()


def numbers(work: Work, now_s: float) -> tuple[object, ...]:
    return (
        work.num_requests,
        work.num_decoding,
        work.num_coming,
        work.num_held_tokens,
        work.num_waiting_tokens,
        work.num_prompts,
        round(work.queue_ms(now_s), 6),
        round(work.computed_ms, 6),
        work.bound_ms,
        work.num_unbounded,
    )


def book(work: Work, key: int, tokens: int, now_s: float) -> None:
    work.num_requests += 1
    work.num_coming += 1
    work.num_held_tokens += tokens
    if tokens % 2:
        work.add_bound(float(tokens))
    work.add_prompt(key, tokens, 10.0 * tokens, now_s, waits_apart=tokens % 3 == 0)


def end_prompt(work: Work, key: int, now_s: float) -> None:
    work.end_prompt(key, now_s)
    work.num_coming -= 1
    work.num_decoding += 1


def release(work: Work, tokens: int) -> None:
    work.num_decoding -= 1
    work.num_requests -= 1
    work.num_held_tokens -= tokens
    if tokens % 2:
        work.drop_bound(float(tokens))


@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 1), st.sampled_from(["book", "end", "release"]), st.integers(1, 9)
        ),
        max_size=30,
    )
)
def test_both_processes_count_as_one_does(steps: list[tuple[int, str, int]]) -> None:
    pair, alone = Pair(), Work()
    works = [endpoint.work for endpoint in pair.endpoints]
    open_prompts: list[dict[int, int]] = [{}, {}]
    decoding: list[list[int]] = [[], []]
    for key, (process, what, tokens) in enumerate(steps):
        if what == "book":
            for work in (works[process], alone):
                book(work, key, tokens, pair.now_s)
            open_prompts[process][key] = tokens
        elif what == "end" and open_prompts[process]:
            ended, num_tokens = open_prompts[process].popitem()
            for work in (works[process], alone):
                end_prompt(work, ended, pair.now_s)
            decoding[process].append(num_tokens)
        elif what == "release" and decoding[process]:
            num_tokens = decoding[process].pop()
            for work in (works[process], alone):
                release(work, num_tokens)
        pair.tell()
        for work in works:
            assert numbers(work, pair.now_s) == numbers(alone, pair.now_s)
    # The end of a process takes back what it had booked, and nothing else.
    own = works[0].own(pair.now_s)
    pair.shared[0].drop(1)
    left = works[0]
    assert left.num_requests == own.num_requests
    assert left.num_held_tokens == own.num_held_tokens
    assert left.num_prompts == own.num_prompts
    assert round(left.computed_ms, 6) == round(alone.computed_ms, 6)


def test_a_newcomer_is_told_everything_and_a_late_worker_counts_what_is_elsewhere() -> None:
    pair = Pair()
    book(pair.endpoints[0].work, 1, 5, pair.now_s)
    pair.tell()
    pair.shared[0].tell()
    assert len(pair.wires[0].told) == 1
    pair.shared[0].tell_all()
    assert [list(body) for body in pair.wires[0].told] == [[str(RECORD.worker)]] * 2
    # The other process meets the worker only now.
    late = Endpoint(record=RECORD, load=WorkerLoad())
    pair.shared[1]._endpoints = lambda: [late]
    assert late.work.own(pair.now_s) == NOTHING
    pair.shared[1].tell()
    assert late.work.num_requests == 1
    pair.shared[1]._endpoints = list
    pair.shared[1].tell()
    assert pair.shared[1]._counted == {}
