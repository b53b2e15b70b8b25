from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from services.router.routing.base import RoutingRequest
from services.router.routing.places.mode import PlacementMode
from services.router.workers.endpoint import WorkerSoftware
from shared.directory.base import WorkerLoad
from shared.errors import NoWorkerError, OverloadedError
from shared.identity import Role
from shared.rpc.protocol import BLOCK_SIZES_MINOR
from tests.unit.router.routing.workers import BLOCK_SIZE, SPACE, Cluster, endpoint, hashes

if TYPE_CHECKING:
    from services.router.workers.endpoint import Endpoint

REQUEST = RoutingRequest(num_prompt_tokens=10, max_tokens=10)
LONG = hashes(*range(1, 101))
LONG_REQUEST = RoutingRequest(
    num_prompt_tokens=100 * BLOCK_SIZE, max_tokens=10, block_hashes={SPACE: LONG}
)


def _prefill(cluster: Cluster, request: RoutingRequest = REQUEST) -> list[str]:
    return [e.name for e in cluster.chooser.route(request).prefill]


def test_equals_are_chosen_equally() -> None:
    cluster = Cluster(*(endpoint(name, Role.DECODE) for name in "abc"))
    counts = Counter(cluster.chooser.route(REQUEST).decode.name for _ in range(600))
    assert all(150 < count < 250 for count in counts.values())


def test_prefill_workers_are_ordered_by_what_waits_there() -> None:
    workers = [endpoint(name) for name in "pqrs"]
    for key, (worker, ms) in enumerate(zip(workers, (300, 100, 400, 200), strict=True)):
        worker.work.add_prompt(key, 10, ms, 100.0)
    assert _prefill(Cluster(endpoint("d", Role.DECODE), *workers)) == ["q", "s", "p"]


def test_the_decode_worker_with_the_shortest_step_is_chosen() -> None:
    a, b = endpoint("a", Role.DECODE), endpoint("b", Role.DECODE)
    cluster = Cluster(a, b, endpoint("p"))
    a.work.num_decoding = 8
    assert cluster.chooser.route(REQUEST).decode is b
    b.work.num_decoding, b.work.num_held_tokens = 8, 100_000
    assert cluster.chooser.route(REQUEST).decode is a


def test_a_decode_worker_without_room_costs_a_preemption() -> None:
    full, busy = endpoint("a", Role.DECODE, num_blocks=100), endpoint("b", Role.DECODE)
    full.work.num_held_tokens = 100 * BLOCK_SIZE
    busy.work.num_decoding = 4
    busy.work.num_held_tokens = 100 * BLOCK_SIZE
    cluster = Cluster(full, busy, endpoint("p"))
    assert cluster.chooser.route(LONG_REQUEST).decode is busy


def test_without_prefill_workers_the_decode_worker_that_holds_the_prompt_computes_it() -> None:
    a, b = endpoint("a", Role.DECODE), endpoint("b", Role.DECODE)
    cluster = Cluster(a, b)
    cluster.holders.hold(b, LONG)
    for _ in range(20):
        route = cluster.chooser.route(LONG_REQUEST)
        assert (route.decode, route.prefill) == (b, ())
    assert route.estimate.ttft_ms == pytest.approx(b.profile.prefill_ms(1600, 1599))


def test_the_holder_is_chosen_until_its_queue_costs_more_than_computing() -> None:
    holder, other = endpoint("p"), endpoint("q")
    cluster = Cluster(endpoint("d", Role.DECODE), holder, other)
    cluster.holders.hold(holder, LONG)
    saved_ms = other.profile.prefill_ms(1600, 0) - holder.profile.prefill_ms(1600, 1599)
    holder.work.add_prompt(1, 10, saved_ms - 1, cluster.clock())
    assert _prefill(cluster, LONG_REQUEST) == ["p", "q"]
    holder.work.add_prompt(2, 10, 2, cluster.clock())
    assert _prefill(cluster, LONG_REQUEST) == ["q", "p"]


def test_what_was_just_sent_counts_before_it_is_reported() -> None:
    workers = [endpoint(name) for name in "pqrs"]
    cluster = Cluster(endpoint("d", Role.DECODE), *workers)
    route = cluster.chooser.route(LONG_REQUEST)
    booking = cluster.book.begin(route, num_prompt_tokens=1600, block_hashes={SPACE: LONG})
    booking.add_tokens(1)
    assert cluster.chooser.route(LONG_REQUEST).prefill[0] is route.prefill[0]
    again = cluster.chooser.decide(LONG_REQUEST)
    assert again.prefill.candidates[0].num_held_tokens == 1599
    assert again.decode.candidates[0].num_held_tokens == 1599
    cluster.clock.now_s += 6
    forgotten = cluster.chooser.decide(LONG_REQUEST)
    assert {c.num_held_tokens for c in forgotten.prefill.candidates} == {0}


def test_crowding_makes_computing_twice_dearer_the_more_comes() -> None:
    holder, other = endpoint("p"), endpoint("q")
    cluster = Cluster(endpoint("d", Role.DECODE), holder, other)
    cluster.holders.hold(holder, LONG)
    saved_ms = other.profile.prefill_ms(1600, 0) - holder.profile.prefill_ms(1600, 1599)
    holder.work.add_prompt(1, 10, saved_ms + 5, cluster.clock())
    assert _prefill(cluster, LONG_REQUEST)[0] == "q"
    for _ in range(200):
        cluster.book.arrivals.note(cluster.clock())
    assert _prefill(cluster, LONG_REQUEST)[0] == "p"


def test_a_prefix_that_all_the_work_goes_after_gets_a_second_holder() -> None:
    holder, other = endpoint("p"), endpoint("q")
    cluster = Cluster(endpoint("d", Role.DECODE), holder, other)
    cluster.holders.hold(holder, LONG)
    cold_ms = other.profile.prefill_ms(1600, 0)
    for key in range(300):
        holder.work.add_prompt(key, 10, cold_ms, cluster.clock())
        holder.work.end_prompt(key, cluster.clock())
    assert _prefill(cluster, LONG_REQUEST)[0] == "q"
    cluster.clock.now_s += 200
    assert _prefill(cluster, LONG_REQUEST)[0] == "p"


def test_one_conversation_on_an_idle_cluster_stays_where_it_is() -> None:
    holder, other = endpoint("p"), endpoint("q")
    cluster = Cluster(endpoint("d", Role.DECODE), holder, other)
    cluster.holders.hold(holder, LONG)
    for key in range(20):
        holder.work.add_prompt(key, 10, 50.0, cluster.clock())
        holder.work.end_prompt(key, cluster.clock())
    assert _prefill(cluster, LONG_REQUEST)[0] == "p"


def test_a_fetch_from_a_peer_counts_where_it_is_faster_than_computing() -> None:
    holder, other = endpoint("p"), endpoint("q")
    cluster = Cluster(endpoint("d", Role.DECODE), holder, other, peer_fetch=True)
    cluster.holders.hold(holder, LONG)
    by_name = {c.endpoint.name: c for c in cluster.chooser.decide(LONG_REQUEST).prefill.candidates}
    assert (by_name["p"].num_fetched_tokens, by_name["q"].num_fetched_tokens) == (0, 1599)
    assert by_name["q"].transfer_ms == other.profile.transfer_ms(1599)
    for _ in range(20):
        other.profile.observe_transfer(1000, 16_000_000, 5000.0)
    by_name = {c.endpoint.name: c for c in cluster.chooser.decide(LONG_REQUEST).prefill.candidates}
    assert (by_name["q"].num_fetched_tokens, by_name["q"].transfer_ms) == (0, 0)


def test_sources_are_peers_that_hold_more_best_first() -> None:
    p, q, r = endpoint("p"), endpoint("q"), endpoint("r")
    decode, stranger = endpoint("d", Role.DECODE), endpoint("s", namespace="cd")
    cluster = Cluster(decode, p, q, r, stranger)
    for worker, count in ((q, 20), (r, 30), (decode, 25), (p, 10), (stranger, 40)):
        cluster.holders.hold(worker, LONG[:count])
    for worker in (q, r):
        worker.work.add_prompt(1, 10, 10_000, cluster.clock())
    route = cluster.chooser.route(LONG_REQUEST)
    assert route.prefill[0] is p
    assert [(s.endpoint.name, s.num_blocks) for s in route.sources] == [("r", 30), ("d", 25)]
    cluster.holders.hold(p, LONG)
    assert cluster.chooser.route(LONG_REQUEST).sources == ()


@pytest.mark.parametrize(
    "other", [{"namespace": "cd"}, {"block_size": 32}, {"model": "big"}, {"max_model_len": 19}]
)
def test_prefill_workers_with_other_blocks_are_left_out(other: dict[str, Any]) -> None:
    decode = endpoint("d", Role.DECODE)
    route = Cluster(decode, endpoint("p", **other)).chooser.route(REQUEST)
    assert route.prefill == ()
    assert route.estimate.prefill_ms == decode.profile.prefill_ms(10, 0)


def of_size(name: str, block_size: int, role: Role = Role.PREFILL, **changes: Any) -> Endpoint:
    """A worker with the same weights as others, and blocks of its own."""
    facts = {"identity": "w", "block_size": block_size, "namespace": f"{block_size:02x}"}
    made = endpoint(name, role, **(facts | changes))
    made.software = WorkerSoftware(protocol_minor=BLOCK_SIZES_MINOR)
    return made


@pytest.mark.parametrize("mode", [PlacementMode.DISAGGREGATED, PlacementMode.ELASTIC])
def test_blocks_of_another_size_are_handed_over_if_one_divides_the_other(
    mode: PlacementMode,
) -> None:
    decode = of_size("d", 16, Role.DECODE)
    small, large, odd = of_size("s", 8), of_size("l", 48), of_size("o", 24)
    old, foreign = of_size("a", 8), of_size("f", 8, identity="v")
    old.software = WorkerSoftware(protocol_minor=BLOCK_SIZES_MINOR - 1)
    decision = Cluster(decode, small, large, odd, old, foreign, mode=mode).chooser.decide(REQUEST)
    if mode is PlacementMode.ELASTIC:
        handed = {p.reader.endpoint.name for p in decision.placements if p.readers}
        assert handed == {"s", "l"}
        return
    assert decision.route is not None
    assert {each.name for each in decision.route.prefill} == {"s", "l"}
    reasons = {worker.name: reason for worker, reason in decision.prefill.left_out}
    assert reasons == {
        "o": "of a block size that neither divides the 16 tokens of d nor is a multiple of them",
        "a": "too old for the decode worker's block size, or that worker for its own",
        "f": "incompatible with the decode worker's blocks",
    }
    decode.software = old.software
    assert Cluster(decode, small).chooser.route(REQUEST).prefill == ()


def test_each_worker_is_looked_up_by_its_own_blocks() -> None:
    """Of a prompt of 480 tokens, a worker with large blocks has half as many as one with small."""
    decode = of_size("d", 16, Role.DECODE)
    small, other, large = of_size("s", 8), of_size("t", 8), of_size("l", 16)
    spaces = {"08": hashes(*range(1, 61)), "10": hashes(*range(101, 131))}
    request = RoutingRequest(num_prompt_tokens=481, max_tokens=10, block_hashes=spaces)
    cluster = Cluster(decode, small, other, large, peer_fetch=True)
    cluster.holders.hold(small, spaces["08"][:30])
    cluster.holders.hold(other, spaces["08"][:40])
    cluster.holders.hold(decode, spaces["10"][:25])
    decision = cluster.chooser.decide(request)
    [writer] = decision.decode.candidates
    assert (writer.num_held_blocks, writer.num_held_tokens) == (25, 400)
    by_name = {c.endpoint.name: c for c in decision.prefill.candidates}
    assert [by_name[name].num_held_tokens for name in "stl"] == [240, 320, 0]
    # Prefixes come from workers with blocks of the same size alone.
    fetched = [by_name[name].num_fetched_tokens for name in "stl"]
    assert fetched == [80, 0, 400]
    route = decision.route
    assert route is not None
    assert all(s.endpoint.record.block_size == 8 for s in route.sources)
    # What is sent there is predicted by the same hashes, on both workers.
    cluster.book.begin(route, num_prompt_tokens=481, block_hashes=spaces)
    now_s = cluster.clock()
    chosen = route.prefill[0].record
    predicted = cluster.book.predicted
    assert (
        predicted.held(chosen.worker, spaces[chosen.namespace], now_s) == 480 // chosen.block_size
    )
    assert predicted.held(decode.record.worker, spaces["10"], now_s) == 30
    assert predicted.held(decode.record.worker, spaces["08"], now_s) == 0
    assert cluster.chooser.decide(request).decode.candidates[0].num_held_tokens == 480


def test_who_cannot_serve_is_left_out_and_why() -> None:
    draining, starting, failed = (endpoint(name, Role.DECODE) for name in "abd")
    small = endpoint("c", Role.DECODE, max_model_len=19)
    draining.load = WorkerLoad(draining=True)
    starting.ready = False
    request = RoutingRequest(
        num_prompt_tokens=10, max_tokens=10, excluded=frozenset({failed.record.worker})
    )
    with pytest.raises(NoWorkerError) as caught:
        Cluster(draining, starting, small, failed).chooser.route(request)
    message = str(caught.value)
    for part in ("a is draining", "b is not ready", "c is too small", "d is failed before"):
        assert part in message
    good = endpoint("e", Role.DECODE)
    chooser = Cluster(draining, starting, small, failed, good).chooser
    assert chooser.route(request).decode is good


def test_nobody_at_all_is_said_plainly() -> None:
    with pytest.raises(NoWorkerError, match="no decode worker is registered"):
        Cluster().chooser.route(REQUEST)


def test_prompts_are_hashed_only_if_somebody_looks() -> None:
    workers = [endpoint("d", Role.DECODE), endpoint("p")]
    assert Cluster(*workers).chooser.hash_spaces() == {SPACE: BLOCK_SIZE}
    assert Cluster(workers[0]).chooser.hash_spaces() == {}
    assert Cluster(*workers, policy="random").chooser.hash_spaces() == {}
    assert Cluster(*(endpoint(n, namespace="odd") for n in "ab")).chooser.hash_spaces() == {}
    mixed = [*workers, endpoint("q", namespace="cd")]
    assert Cluster(*mixed).chooser.hash_spaces() == {SPACE: BLOCK_SIZE}


def test_a_request_nobody_can_serve_in_time_is_refused_with_the_time_to_wait() -> None:
    worker = endpoint("p")
    cluster = Cluster(endpoint("d", Role.DECODE), worker)
    cold_ms = worker.profile.prefill_ms(10, 0)
    request = RoutingRequest(num_prompt_tokens=10, max_tokens=10, max_ttft_ms=1000.0)
    assert cluster.chooser.route(request).prefill == (worker,)
    worker.work.add_prompt(1, 10, 8000.0, cluster.clock())
    with pytest.raises(OverloadedError, match="first token") as caught:
        cluster.chooser.route(request)
    assert caught.value.retry_after_s == pytest.approx(7 + cold_ms / 1000)
    with pytest.raises(OverloadedError):
        cluster.chooser.check(request)
    cluster.clock.now_s += 7.5
    assert cluster.chooser.route(request).prefill == (worker,)


def test_who_meets_the_bound_comes_before_who_costs_less() -> None:
    fast, slow = endpoint("p"), endpoint("q")
    cluster = Cluster(endpoint("d", Role.DECODE), fast, slow, policy="cache-first")
    cluster.holders.hold(slow, LONG)
    slow.work.add_prompt(1, 10, 5000.0, cluster.clock())
    assert _prefill(cluster, LONG_REQUEST) == ["q", "p"]
    bounded = RoutingRequest(
        num_prompt_tokens=1600, max_tokens=10, block_hashes={SPACE: LONG}, max_ttft_ms=1000.0
    )
    assert _prefill(cluster, bounded) == ["p", "q"]


def test_a_bound_between_tokens_is_the_decode_worker_s() -> None:
    full, free = endpoint("a", Role.DECODE), endpoint("b", Role.DECODE)
    full.work.num_decoding = 100
    request = RoutingRequest(num_prompt_tokens=10, max_tokens=10, max_itl_ms=20.0)
    assert Cluster(full, free).chooser.route(request).decode is free
    with pytest.raises(OverloadedError, match="between tokens"):
        Cluster(full).chooser.route(request)
