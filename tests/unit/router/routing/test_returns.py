"""A next turn finds its beginning where answers are written, or also where prompts are computed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from services.router.routing.base import RoutingRequest
from services.router.routing.estimator import HARM_WEIGHT
from services.router.routing.places.mode import PlacementMode
from services.router.routing.places.placement import Place, Placement
from services.router.routing.places.returns import SHARE_PRIOR, WEIGHT
from services.router.workers.endpoint import Endpoint, WorkerSoftware
from shared.identity import Role
from shared.rpc.protocol import SPLIT_MINOR
from tests.unit.router.routing.workers import BLOCK_SIZE, SPACE, Cluster, endpoint, hashes

BOTH = frozenset({Role.PREFILL, Role.DECODE})
FIRST = hashes(*range(1, 101))
REQUEST = RoutingRequest(num_prompt_tokens=1600, max_tokens=100, block_hashes={SPACE: FIRST})


class Four:
    """Two workers that prefer prefill and two that write, of which the second one is busy.

    Some requests a second have come.
    """

    def __init__(self, *, per_s: float = 4.0) -> None:
        self.prefill = [endpoint(name, Role.PREFILL, serves=BOTH) for name in "pq"]
        self.idle, self.busy = (endpoint(name, Role.DECODE, serves=BOTH) for name in "de")
        self.busy.work.num_decoding = 4
        self.cluster = Cluster(*self.prefill, self.idle, self.busy, mode=PlacementMode.ELASTIC)
        for _ in range(200 if per_s else 0):
            self.cluster.book.arrivals.note(self.cluster.clock())
            self.cluster.clock.now_s += 1 / per_s

    def placements(self, request: RoutingRequest = REQUEST) -> list[Placement]:
        return self.cluster.chooser.decide(request).placements

    def best(self) -> Placement:
        return self.placements()[0]

    def returns(self, reader: Endpoint, writer: Endpoint) -> float:
        [found] = [
            p.terms_ms["return"]
            for p in self.placements()
            if (p.reader.endpoint, p.writer.endpoint) == (reader, writer)
            and p.place is not Place.SPLIT
        ]
        return found

    @property
    def num_sequences(self) -> float:
        """Of a worker that writes, on average: answers have 100 tokens."""
        answer_s = 100 * self.idle.profile.itl_ms(1, 0) / 1000
        return self.cluster.book.arrivals.per_s(self.cluster.clock()) * answer_s / 2

    @property
    def busy_share(self) -> float:
        """Of the time of a worker that writes: answers come by chance."""
        return 1 - math.exp(-self.num_sequences)

    def learn(self, *, num_held: int, times: int = 200) -> None:
        """Have prompts come of which some worker holds so many blocks."""
        self.cluster.holders.blocks.clear()
        self.cluster.holders.hold(self.busy, FIRST[:num_held])
        for _ in range(times):
            self.cluster.chooser.route(REQUEST)
        self.cluster.holders.blocks.clear()


def test_a_first_turn_is_computed_where_its_next_one_need_not_wait_for_answers() -> None:
    four = Four()
    four.learn(num_held=90)
    # An idle worker that would write it saves the hand-off; but it will not be idle.
    assert four.best().place is Place.HANDED_OVER
    assert four.best().reader.endpoint in four.prefill
    four.learn(num_held=0)
    assert (four.best().place, four.best().writer.endpoint) == (Place.HERE, four.idle)


def test_nothing_is_lost_where_no_answers_are_written() -> None:
    four = Four(per_s=0)
    four.learn(num_held=90)
    assert four.busy_share == 0.0
    assert {p.terms_ms["return"] for p in four.placements()} == {0.0}
    assert four.best().place is Place.HERE


def test_what_is_lost_is_the_computation_of_what_no_worker_for_prompts_holds() -> None:
    four = Four()
    four.learn(num_held=60)
    prefill, other = four.prefill
    loss = 0.6 * four.busy_share
    profile = four.idle.profile
    assert four.returns(four.idle, four.idle) == pytest.approx(loss * profile.prefill_ms(1600, 0))
    assert four.returns(prefill, four.idle) == 0.0
    assert four.returns(prefill, prefill) == 0.0
    # What both kinds hold does not change; what one of them holds is left to lose.
    four.cluster.holders.hold(four.idle, FIRST)
    assert four.returns(four.idle, four.idle) == pytest.approx(loss * profile.prefill_ms(1600, 0))
    four.cluster.holders.hold(other, FIRST[:75])
    left_ms = profile.prefill_ms(1600, 75 * BLOCK_SIZE)
    assert four.returns(four.idle, four.idle) == pytest.approx(loss * left_ms)
    assert four.best().cost_ms == pytest.approx(sum(four.best().terms_ms.values()))


def test_a_next_turn_with_little_to_compute_is_computed_beside_answers() -> None:
    four = Four()
    four.learn(num_held=98)
    # It takes twice as long, and they all wait for it.
    times = four.busy_share + HARM_WEIGHT * four.num_sequences
    rest_ms = four.idle.profile.prefill_ms(1600, 98 * BLOCK_SIZE)
    assert four.returns(four.idle, four.idle) == pytest.approx(0.98 * times * rest_ms)
    # Prompts that begin with no other one say nothing of that.
    four.learn(num_held=0, times=5)
    share = 0.98 * (1 - WEIGHT) ** 5
    assert four.returns(four.idle, four.idle) == pytest.approx(share * times * rest_ms)


def test_another_worker_that_writes_saves_a_next_turn_nothing_either() -> None:
    four = Four()
    assert four.returns(four.idle, four.busy) == four.returns(four.idle, four.idle) > 0
    # One that prefers prefill and writes has it.
    [landed] = {
        p.terms_ms["return"]
        for p in four.placements()
        if p.reader.endpoint is four.idle and p.writer.endpoint in four.prefill
    }
    assert landed == 0.0


def test_of_a_split_its_beginning_is_saved() -> None:
    four = Four()
    four.prefill[1].ready = False  # few enough for all to be compared
    four.idle.software = WorkerSoftware(protocol_minor=SPLIT_MINOR)
    four.idle.work.add_prompt(1, 10, 60.0, four.cluster.clock())
    splits = [
        p
        for p in four.placements()
        if p.split is not None and p.reader.endpoint in four.prefill
        and p.writer.endpoint is four.idle
    ]  # fmt: skip
    assert splits
    whole = four.returns(four.idle, four.idle)
    profile = four.idle.profile
    for each in splits:
        assert each.split is not None
        part = profile.prefill_ms(1600, each.split.num_tokens) / profile.prefill_ms(1600, 0)
        assert each.terms_ms["return"] == pytest.approx(part * whole)


def test_before_turns_could_come_back_half_of_them_are_expected() -> None:
    four = Four()
    loss = SHARE_PRIOR * four.busy_share
    whole_ms = four.idle.profile.prefill_ms(1600, 0)
    assert four.returns(four.idle, four.idle) == pytest.approx(loss * whole_ms)
    # A decision that is not sent is none.
    for _ in range(50):
        four.placements(replace(REQUEST, block_hashes={}))
    assert four.returns(four.idle, four.idle) == pytest.approx(loss * whole_ms)


def test_an_empty_prompt_is_sent_to_a_worker_which_refuses_it() -> None:
    empty = RoutingRequest(num_prompt_tokens=0, max_tokens=100)
    assert Four().placements(empty)


def test_without_workers_for_prompts_nothing_could_save_it() -> None:
    workers = [endpoint(name, Role.DECODE, serves=BOTH) for name in "de"]
    workers[0].work.num_decoding = 4
    cluster = Cluster(*workers, mode=PlacementMode.ELASTIC)
    placements = cluster.chooser.decide(REQUEST).placements
    assert {p.terms_ms["return"] for p in placements} == {0.0}
