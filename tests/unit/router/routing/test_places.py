"""Where a prompt is computed: handed over, or at the worker that writes the answer."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.routing.base import Route, RoutingRequest
from services.router.routing.estimator import HARM_WEIGHT
from services.router.routing.explain import explain
from services.router.routing.learn import learn_decode, learn_prefill
from services.router.routing.places.compare import NO_SPACE, NO_TIME
from services.router.routing.places.mode import PlacementMode
from services.router.routing.places.placement import Place, Placement
from services.router.routing.places.split import MIN_PART_TOKENS
from services.router.routing.places.steps import alone_ms, beside
from services.router.routing.policies.scorers import DecodeLoad
from services.router.usage import Timings, Usage
from services.router.workers.endpoint import WorkerSoftware
from shared.directory.base import WorkerLoad
from shared.engine.timing.step_bound import PROMPT_STRETCH, prompt_room_ms
from shared.identity import Role
from shared.rpc.protocol import SPLIT_MINOR
from tests.unit.router.routing.workers import BLOCK_SIZE, SPACE, Cluster, endpoint, hashes

if TYPE_CHECKING:
    from services.router.workers.endpoint import Endpoint

LONG = hashes(*range(1, 101))
BOTH = frozenset({Role.PREFILL, Role.DECODE})
REQUEST = RoutingRequest(num_prompt_tokens=1600, max_tokens=100, block_hashes={SPACE: LONG})

ms = st.floats(0.1, 1e4)
counts = st.integers(0, 64)
bounds = st.none() | st.floats(1.0, 1e3)


def _both(name: str, role: Role = Role.DECODE, **changes: Any) -> Endpoint:
    return endpoint(name, role, serves=BOTH, **changes)


def _cluster(*workers: Endpoint, **more: Any) -> Cluster:
    return Cluster(*workers, mode=PlacementMode.ELASTIC, **more)


def _decodes(worker: Endpoint, num: int, *, bound_ms: float | None = None) -> None:
    """Have the worker decode `num` sequences of 100 tokens."""
    worker.work.num_decoding = num
    worker.work.num_held_tokens = 100 * num
    for _ in range(num if bound_ms is not None else 0):
        worker.work.add_bound(bound_ms or 0.0)


def _place(cluster: Cluster, request: RoutingRequest = REQUEST) -> tuple[str, str]:
    placement = cluster.chooser.decide(request).placement
    assert placement is not None
    return placement.reader.endpoint.name, placement.writer.endpoint.name


@given(prefill=ms, itl=ms, more=ms, num=counts, extra=counts, bound=bounds, least=ms)
def test_more_sequences_never_make_a_prompt_cheaper(
    *, prefill: float, itl: float, more: float, num: int, extra: int, bound: float | None,
    least: float,
) -> None:  # fmt: skip
    facts = {"bound_ms": bound, "least_ms": least}
    few = beside(prefill, num_decoding=num, num_unbounded=num, itl_ms=itl, **facts)
    many = beside(
        prefill, num_decoding=num + extra, num_unbounded=num + extra, itl_ms=itl + more, **facts
    )
    assert not many.fits or many.stretch_ms >= few.stretch_ms * (1 - 1e-9)
    assert few.fits or not many.fits


@given(
    prefill=ms,
    itl=ms,
    num=st.integers(1, 64),
    free=counts,
    bound=bounds,
    least=ms,
    left=st.floats(1.0, 1e3),
)
def test_no_step_is_expected_to_exceed_its_limit(
    *,
    prefill: float,
    itl: float,
    num: int,
    free: int,
    bound: float | None,
    least: float,
    left: float,
) -> None:
    facts: dict[str, Any] = {
        "num_decoding": num, "num_unbounded": min(num, free), "itl_ms": itl, "bound_ms": bound,
        "least_ms": least, "num_left": left,
    }  # fmt: skip
    there = beside(prefill, **facts)
    if not there.fits:
        assert bound is not None
        assert bound <= itl
        return
    assert bound is None or there.step_ms <= bound * (1 + 1e-9)
    if free:
        assert there.step_ms <= (itl + prompt_room_ms(itl, least)) * (1 + 1e-9)
        assert there.step_ms <= PROMPT_STRETCH * itl * (1 + 1e-9)
    # What a prompt was seen to take in such steps is what it takes alone.
    took_ms = prefill + there.stretch_ms
    assert alone_ms(took_ms, **facts) == pytest.approx(prefill, rel=1e-6, abs=1e-6)


def test_a_prompt_is_beside_short_answers_for_as_long_as_they_last() -> None:
    cluster = _cluster(_both("d"), endpoint("p"))
    first = cluster.book.begin(cluster.chooser.route(REQUEST), num_prompt_tokens=100)
    first.add_tokens(1)
    beside_long = _here_of(cluster)
    for _ in range(40):
        cluster.book.note_answer(3)
    beside_short = _here_of(cluster)
    itl_ms = beside_short.writer.endpoint.profile.itl_ms(1, 101)
    assert beside_short.terms_ms["stretch"] < 6 * itl_ms < beside_long.terms_ms["stretch"]
    assert beside_short.terms_ms["harm"] < HARM_WEIGHT * 6 * itl_ms < beside_long.terms_ms["harm"]


def test_a_lone_prompt_needs_no_hand_off() -> None:
    cluster = _cluster(_both("d"), _both("p", Role.PREFILL))
    assert _place(cluster) == ("d", "d")
    route = cluster.chooser.route(REQUEST)
    assert route.is_kept
    assert route.prefill == ()


def test_a_prompt_beside_many_sequences_is_handed_over() -> None:
    decode = _both("d")
    cluster = _cluster(decode, _both("p", Role.PREFILL), _both("q", Role.PREFILL))
    _decodes(decode, 8)
    cluster.chooser.decide(REQUEST)
    placement = cluster.chooser.decide(REQUEST).placement
    assert placement is not None
    assert placement.reader.endpoint is not decode
    view = explain(cluster.chooser.policy, REQUEST, cluster.chooser.decide(REQUEST))
    here = next(v for v in view.placements if v.decode == v.prefill == "d")
    assert here.terms_ms["harm"] > 0
    assert here.terms_ms["stretch"] > 0
    assert here.cost_ms == pytest.approx(sum(here.terms_ms.values()))
    assert view.placements[0].cost_ms < here.cost_ms


def test_sequences_make_here_dearer_one_by_one() -> None:
    decode = _both("d")
    cluster = _cluster(decode, endpoint("p"))
    costs = []
    for num in range(20):
        _decodes(decode, num)
        placements = cluster.chooser.decide(REQUEST).placements
        there = {p.place: p.cost_ms for p in placements}
        # Both have the growing batch, and one of them its harm.
        costs.append(there[Place.HERE] - there[Place.HANDED_OVER])
    assert costs == sorted(costs)
    assert costs[0] < 0 < costs[-1]


def test_a_worker_of_one_service_is_used_for_no_other() -> None:
    decode, prefill = endpoint("d", Role.DECODE), endpoint("p")
    cluster = _cluster(decode, prefill)
    _decodes(decode, 30)
    names = {(p.reader.endpoint.name, p.writer.endpoint.name)
             for p in cluster.chooser.decide(REQUEST).placements}  # fmt: skip
    # A decode worker may always compute the prompts of its own answers.
    assert names == {("p", "d"), ("d", "d")}


def test_equals_are_decided_by_preference_and_then_by_chance() -> None:
    cluster = _cluster(_both("d"), _both("p", Role.PREFILL))
    assert {_place(cluster) for _ in range(20)} == {("d", "d")}
    alike = _cluster(*(_both(name) for name in "abc"))
    assert len({_place(alike) for _ in range(60)}) == 3


def test_the_next_turn_stays_where_its_blocks_are() -> None:
    decode, other = _both("d"), _both("e")
    cluster = _cluster(decode, other, _both("p", Role.PREFILL))
    cluster.holders.hold(decode, LONG[:98])
    _decodes(decode, 2)
    assert _place(cluster) == ("d", "d")
    # Unless it would wait there for longer than it takes to compute all of it.
    decode.work.add_prompt(1, 10, 10_000.0, cluster.clock())
    assert _place(cluster)[0] != "d"


def test_a_bound_of_others_keeps_a_prompt_away_or_lets_it_in() -> None:
    decode = _both("d")
    cluster = _cluster(decode, endpoint("p"))
    _decodes(decode, 4, bound_ms=5.0)
    [here] = [p for p in cluster.chooser.decide(REQUEST).placements if p.place is Place.HERE]
    assert here.flaw == NO_TIME
    for _ in range(4):
        decode.work.drop_bound(5.0)
        decode.work.add_bound(1000.0)
    [here] = [p for p in cluster.chooser.decide(REQUEST).placements if p.place is Place.HERE]
    assert (here.flaw, here.reader.harm_ms) == ("", 0.0)
    assert here.reader.step_ms <= 1000.0


def test_a_full_pool_gets_no_prompt_though_it_is_idle() -> None:
    full, other = _both("d", num_blocks=100), _both("e")
    cluster = _cluster(full, other)
    full.work.num_held_tokens = 95 * BLOCK_SIZE
    other.work.add_prompt(1, 10, 50.0, cluster.clock())
    assert _place(cluster)[1] == "e"
    flaws = {p.writer.endpoint.name: p.flaw for p in cluster.chooser.decide(REQUEST).placements}
    assert flaws == {"d": NO_SPACE, "e": ""}


@pytest.mark.parametrize("policy", ["cache-first", "least-loaded", "round-robin", "random"])
def test_every_policy_leaves_the_place_to_its_costs(policy: str) -> None:
    decode = _both("d")
    cluster = _cluster(decode, endpoint("p"), policy=policy)
    assert _place(cluster) == ("d", "d")
    _decodes(decode, 30)
    assert _place(cluster) == ("p", "d")


def test_one_that_only_computes_its_own_prompts_is_aggregated() -> None:
    workers = _both("d"), _both("p", Role.PREFILL)
    cluster = Cluster(*workers, mode=PlacementMode.AGGREGATED)
    places = {_place(cluster) for _ in range(40)}
    workers[0].work.add_prompt(1, 10, 1e5, cluster.clock())
    places |= {_place(cluster)}
    assert places == {("d", "d"), ("p", "p")}


def test_a_preference_that_changes_counts_at_once() -> None:
    decode = _both("d")
    cluster = _cluster(decode, _both("p", Role.PREFILL))
    decode.report(WorkerLoad(preference=Role.PREFILL))
    cluster.chooser.decide(REQUEST)
    assert decode.preference is Role.PREFILL
    [mine] = [p for p in cluster.chooser.decide(REQUEST).placements
              if p.writer.endpoint is decode and p.place is Place.HERE]  # fmt: skip
    assert mine.writer.preference_ms > 0


@pytest.mark.parametrize("answer_tokens", [math.inf, 3.0])
def test_what_is_learned_beside_others_is_what_it_takes_alone(answer_tokens: float) -> None:
    decode, rng = _both("d"), random.Random(1)
    cluster = _cluster(decode)
    decode.work.num_held_tokens = 400
    for _ in range(100):
        decode.profile.observe_decode(4, 400, 20.0)
    for _ in range(100):
        tokens = rng.randint(100, 4000)
        took_ms = 0.1 * tokens + beside(
            0.1 * tokens, num_decoding=4, num_unbounded=4, itl_ms=20.0, bound_ms=None,
            least_ms=decode.profile.itl_ms(1, 0), num_left=answer_tokens,
        ).stretch_ms  # fmt: skip
        usage, timings = Usage(prompt_tokens=tokens), Timings(prefill_ms=took_ms)
        learn_prefill(
            cluster.chooser.route(REQUEST), usage, timings, num_beside=4,
            answer_tokens=answer_tokens,
        )  # fmt: skip
    assert decode.profile.prefill_ms(2000, 0) == pytest.approx(200, rel=0.05)


def test_prompts_of_others_do_not_count_as_slow_steps() -> None:
    decode = _both("d")
    cluster = _cluster(decode)
    route = cluster.chooser.route(REQUEST)
    for _ in range(60):
        booking = cluster.book.begin(route, num_prompt_tokens=100)
        booking.add_tokens(1)
        other = cluster.book.begin(route, num_prompt_tokens=100)
        other.add_tokens(1)
        expected_ms = route.estimate.work_ms or 0.0
        learn_decode(route, booking, Timings(decode_ms=expected_ms + 200.0), num_output_tokens=11)
        for each in (booking, other):
            each.release()
    assert decode.profile.itl_ms(1.5, 200) == pytest.approx(20, rel=0.05)


def test_a_prompt_for_a_busy_writer_may_begin_elsewhere() -> None:
    decode, prefill = _both("d"), endpoint("p")
    decode.software = WorkerSoftware(protocol_minor=SPLIT_MINOR)
    cluster = _cluster(decode, prefill)
    cluster.holders.hold(decode, LONG[:10])

    def splits(request: RoutingRequest = REQUEST) -> list[Placement]:
        placements = cluster.chooser.decide(request).placements
        return [p for p in placements if p.place is Place.SPLIT]

    assert not splits()
    queue_ms = 60.0
    decode.work.add_prompt(1, 10, queue_ms, cluster.clock())
    found = splits()
    assert len(found) == 3
    for each in found:
        split = each.split
        assert split is not None
        num_here = REQUEST.num_prompt_tokens - split.num_tokens
        assert split.num_tokens % BLOCK_SIZE == 0
        assert min(split.num_tokens - 160, num_here) >= MIN_PART_TOKENS
        rest_ms = decode.profile.prefill_ms(1600, split.num_tokens)
        moved_ms = decode.profile.exposed_ms(split.num_tokens - 160)
        there_ms = prefill.profile.prefill_ms(split.num_tokens, 0) + moved_ms
        assert split.ttft_ms == pytest.approx(max(queue_ms, there_ms) + rest_ms)
        assert each.cost_ms == pytest.approx(sum(each.terms_ms.values()))
    # It beats waiting for the writer, which would do nothing of it meanwhile.
    here = _here_of(cluster)
    assert min(p.ttft_ms for p in found) < here.ttft_ms
    assert not splits(replace(REQUEST, can_split=False))
    decode.splits = False
    assert not splits()


def test_a_worker_that_had_all_handed_over_is_sent_no_split_again() -> None:
    decode, prefill = _both("d"), endpoint("p")
    route = Route(decode, (prefill,), num_handed_tokens=800)
    usage = Usage(prompt_tokens=1600, transferred_tokens=1600)
    learn_prefill(route, usage, Timings(prefill_place="split", prefill_ms=5.0, prefill_worker="p"))
    assert (decode.splits, prefill.profile.num_measurements) == (True, 0)
    learn_prefill(route, usage, Timings(prefill_place="remote", prefill_ms=5.0, prefill_worker="p"))
    assert (decode.splits, prefill.profile.num_measurements) == (False, 1)


def _here_of(cluster: Cluster) -> Placement:
    [here] = [p for p in cluster.chooser.decide(REQUEST).placements if p.place is Place.HERE]
    return here


def test_answers_keep_out_of_the_way_of_prompts_that_come_all_the_time() -> None:
    decode, free, busy = _both("d"), _both("p", Role.PREFILL), _both("q", Role.PREFILL)
    cluster = _cluster(decode, free, busy)
    # So many that a new worker pays, although it prefers prefill.
    _decodes(decode, 40)
    assert _place(cluster)[1] in ("p", "q")
    for key in range(40):
        cluster.clock.now_s += 0.1
        busy.work.add_prompt(key, 10, 80.0, cluster.clock())
        busy.work.end_prompt(key, cluster.clock())
    assert _place(cluster)[1] == "d"
    cluster.clock.now_s += 120
    assert _place(cluster)[1] in ("p", "q")


def test_prompts_that_others_compute_come_to_workers_that_prefer_them() -> None:
    decode, other, prefill = _both("d"), _both("e"), _both("p", Role.PREFILL)
    cluster = _cluster(decode, other, prefill)
    for each, num in ((decode, 40), (other, 60)):
        _decodes(each, num)
    assert _place(cluster)[1] == "p"
    for key in range(40):
        cluster.clock.now_s += 0.1
        other.work.add_prompt(key, 10, 40.0, cluster.clock())
        other.work.end_prompt(key, cluster.clock())
    [here] = [
        p
        for p in cluster.chooser.decide(REQUEST).placements
        if p.writer.endpoint is prefill and p.place is Place.HERE
    ]
    share = other.work.prompt_share(cluster.clock())
    answer_ms = REQUEST.max_tokens * prefill.profile.itl_ms(1, 0)
    assert here.terms_ms["spoil"] == pytest.approx(HARM_WEIGHT * share * answer_ms)
    assert _place(cluster)[1] == "d"


def test_answers_are_divided_evenly_while_prompts_come_all_the_time() -> None:
    workers = [_both("d"), _both("e"), _both("p", Role.PREFILL), _both("q", Role.PREFILL)]
    cluster = _cluster(*workers)
    for number in range(40):
        cluster.clock.now_s += 0.1
        booking = cluster.book.begin(cluster.chooser.route(REQUEST), num_prompt_tokens=1600)
        booking.add_tokens(1)
        if number == 10:
            first = [worker.work.num_decoding for worker in workers]
    gained = [worker.work.num_decoding - had for worker, had in zip(workers, first, strict=True)]
    assert abs(gained[0] - gained[1]) <= 2
    assert sum(gained[:2]) == 29


def test_a_prompt_counts_the_answers_that_begin_before_it() -> None:
    decode = _both("d")
    cluster = _cluster(decode, endpoint("p"))
    alone = _here_of(cluster)
    bookings = [cluster.book.begin(Route(decode, ()), num_prompt_tokens=100) for _ in range(2)]
    behind = _here_of(cluster)
    assert alone.terms_ms["harm"] == alone.terms_ms["stretch"] == 0.0
    assert behind.terms_ms["harm"] == pytest.approx(HARM_WEIGHT * 2 * behind.writer.prefill_ms)
    assert behind.terms_ms["stretch"] > 0
    assert behind.itl_ms > alone.itl_ms
    for booking in bookings:
        booking.release()
    assert _here_of(cluster).terms_ms["harm"] == 0.0
    assert decode.work.num_coming == 0


def test_answers_gather_where_others_decode_if_prompts_wait() -> None:
    first, second = _both("d"), _both("e")
    cluster = _cluster(first, second, endpoint("p"))
    for worker in (first, second):
        worker.work.add_prompt(1, 10, 500.0, cluster.clock())

    def drag_ms(worker: Endpoint) -> float:
        placements = cluster.chooser.decide(REQUEST).placements
        return next(p for p in placements if p.writer.endpoint is worker).terms_ms["drag"]

    profile, num_tokens = first.profile, REQUEST.max_tokens
    assert drag_ms(first) == pytest.approx(num_tokens * profile.itl_ms(1, 0))
    _decodes(second, 4)
    one_more_ms = profile.itl_ms(5, 400) - profile.itl_ms(4, 400)
    assert drag_ms(second) == pytest.approx(num_tokens * one_more_ms)
    assert _place(cluster) == ("p", "e")
    # The policy, too, which says which writers are compared.
    written = [p.writer for p in cluster.chooser.decide(REQUEST).placements]
    assert {DecodeLoad(0).cost_ms(REQUEST, writer) == writer.drag_ms for writer in written} == {
        True
    }
    # Each prompt waits for all of the answer's steps; without any there is nothing to delay.
    second.work.add_prompt(2, 10, 1.0, cluster.clock())
    assert drag_ms(second) == pytest.approx(2 * num_tokens * one_more_ms)
    for worker in (first, second):
        worker.work.end_prompt(1, cluster.clock())
    assert drag_ms(first) == 0
