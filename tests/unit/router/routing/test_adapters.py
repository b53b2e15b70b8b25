"""Adapters in the choice of workers: loads, places in the batch, hot ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from services.router.routing.base import Route, RoutingRequest
from services.router.routing.explain import explain
from services.router.workers.adapter_use import (
    EVICTED_LOADS,
    HOLD_MS_PRIOR,
    HOST_SHARE,
    LOAD_MS_PRIOR,
    MAX_MEASURED,
    REPORT_S,
    AdapterUse,
    LoadTimes,
)
from shared.directory.base import AdapterPlace, AdapterState, WorkerLoad
from shared.errors import NoWorkerError
from shared.identity import Role
from shared.request.adapter_ref import AdapterRef
from tests.unit.router.routing.workers import Cluster, endpoint

if TYPE_CHECKING:
    from services.router.workers.endpoint import Endpoint

A, B = (AdapterRef(name, name.encode() * 32, f"/{name}") for name in "ab")
REQUEST = RoutingRequest(num_prompt_tokens=10, max_tokens=5, adapter=A)


def serving(
    name: str,
    role: Role = Role.PREFILL,
    *held: tuple[AdapterRef, AdapterPlace],
    slots: int = 4,
    load_ms: float = 100.0,
) -> Endpoint:
    states = tuple(
        AdapterState(adapter=ref, rank=8, place=place, load_ms=load_ms) for ref, place in held
    )
    worker = endpoint(name, role)
    worker.report(WorkerLoad(adapters=states, max_adapters=slots))
    return worker


def _prefill(cluster: Cluster, request: RoutingRequest = REQUEST) -> list[str]:
    return [e.name for e in cluster.chooser.route(request).prefill]


def test_a_worker_without_adapters_gets_no_request_for_one() -> None:
    writer, reader = serving("d", Role.DECODE), serving("p")
    deaf = [serving("e", Role.DECODE, slots=0), serving("q", slots=0)]
    cluster = Cluster(writer, reader, *deaf)
    for _ in range(8):
        route = cluster.chooser.route(REQUEST)
        assert (route.decode, route.prefill) == (writer, (reader,))
    chosen = {cluster.chooser.route(replace(REQUEST, adapter=None)).decode for _ in range(50)}
    assert len(chosen) == 2
    with pytest.raises(NoWorkerError, match="e is without adapters: see --enable-lora"):
        Cluster(*deaf).chooser.route(REQUEST)


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_the_cost_is_the_measured_time_of_the_load(role: Role) -> None:
    has, known, lacks = (
        serving("has", role, (A, AdapterPlace.DEVICE)),
        serving("known", role, (A, AdapterPlace.KNOWN)),
        serving("lacks", role, load_ms=0),
    )
    has.adapters.times = known.adapters.times = lacks.adapters.times = LoadTimes()
    known.adapters.times.observe(A.digest, 70.0)
    host = serving("host", role, (A, AdapterPlace.HOST))
    other = Role.DECODE if role is Role.PREFILL else Role.PREFILL
    rest = serving("rest", other, (A, AdapterPlace.DEVICE))
    cluster = Cluster(lacks, known, host, has, rest)
    view = explain(cluster.chooser.policy, REQUEST, cluster.chooser.decide(REQUEST))
    choice = view.prefill if role is Role.PREFILL else view.decode
    terms = {each.worker: each.terms_ms["adapter"] for each in choice.candidates}
    expected = {"has": 0.0, "host": 100 * HOST_SHARE, "known": 100.0, "lacks": 70.0}
    assert terms == pytest.approx(expected)
    assert choice.candidates[0].worker == "has"


def test_a_full_memory_costs_the_loads_of_what_is_driven_out() -> None:
    """Not the request's own first token; not where the adapter is, or is coming."""
    full, roomy, has = serving("full"), serving("roomy"), serving("has")
    others = tuple(
        AdapterState(adapter=ref, rank=8, place=place, load_ms=0)
        for ref, place in ((B, AdapterPlace.HOST), (A, AdapterPlace.KNOWN))
    )
    for worker, size in ((full, 1), (roomy, 2)):
        worker.report(WorkerLoad(adapters=others, max_adapters=4, max_held_adapters=size))
    state = AdapterState(adapter=A, rank=8, place=AdapterPlace.HOST, load_ms=0)
    has.report(WorkerLoad(adapters=(state,), max_adapters=4, max_held_adapters=1))
    cluster = Cluster(serving("d", Role.DECODE), full, roomy, has)

    def evictions() -> dict[str, float]:
        decision = cluster.chooser.decide(REQUEST)
        for each in decision.prefill.candidates:
            assert each.ttft_ms == pytest.approx(each.prefill_ms + each.adapter_ms)
        view = explain(cluster.chooser.policy, REQUEST, decision)
        return {each.worker: each.terms_ms["eviction"] for each in view.prefill.candidates}

    whole_ms = EVICTED_LOADS * LOAD_MS_PRIOR
    assert evictions() == {"has": 0.0, "roomy": 0.0, "full": whole_ms}
    # A third adapter is on its way to the roomy one, and then this one to the full one.
    roomy.adapters.begin(b"c" * 32, cluster.clock())
    assert evictions() == {"has": 0.0, "roomy": whole_ms, "full": whole_ms}
    full.adapters.begin(A.digest, cluster.clock())
    assert evictions()["full"] == 0.0


def test_the_first_token_waits_for_the_longer_of_queue_and_load() -> None:
    writer, reader = serving("d", Role.DECODE, (A, AdapterPlace.DEVICE)), serving("p")
    cluster = Cluster(writer, reader)
    bare = cluster.chooser.decide(replace(REQUEST, adapter=None)).prefill.candidates[0]
    [candidate] = cluster.chooser.decide(REQUEST).prefill.candidates
    assert candidate.ttft_ms == pytest.approx(bare.ttft_ms + LOAD_MS_PRIOR)
    reader.work.add_prompt(1, 10, LOAD_MS_PRIOR / 2, cluster.clock())
    [candidate] = cluster.chooser.decide(REQUEST).prefill.candidates
    assert candidate.ttft_ms == pytest.approx(bare.ttft_ms + LOAD_MS_PRIOR)


def test_requests_follow_the_first_one_before_its_worker_reports() -> None:
    workers = [serving(name) for name in "pqrs"]
    cluster = Cluster(serving("d", Role.DECODE), *workers)
    route = cluster.chooser.route(REQUEST)
    booking = cluster.book.begin(route, num_prompt_tokens=10, adapter=A.digest)
    cluster.clock.now_s += LOAD_MS_PRIOR / 2000
    again = cluster.chooser.decide(REQUEST).prefill.candidates
    assert again[0].endpoint is route.prefill[0]
    assert again[0].adapter_ms == pytest.approx(LOAD_MS_PRIOR / 2)
    assert {c.adapter_ms for c in again[1:]} == {LOAD_MS_PRIOR}
    booking.add_tokens(1)
    booking.release()
    cluster.clock.now_s += 1
    assert cluster.chooser.decide(REQUEST).prefill.candidates[0].adapter_ms == 0
    # It never reported the adapter.
    cluster.clock.now_s += REPORT_S
    assert cluster.chooser.decide(REQUEST).prefill.candidates[0].adapter_ms == LOAD_MS_PRIOR


def test_another_adapter_waits_for_a_place_in_the_batch() -> None:
    full = serving("full", Role.DECODE, (A, AdapterPlace.DEVICE), slots=1)
    cluster = Cluster(full)
    booking = cluster.book.begin(Route(full), num_prompt_tokens=10, adapter=B.digest)
    waiting_ms = cluster.chooser.decide(REQUEST).decode.candidates[0].adapter_ms
    assert waiting_ms == pytest.approx(HOLD_MS_PRIOR)
    same = cluster.chooser.decide(replace(REQUEST, adapter=B)).decode.candidates[0].adapter_ms
    assert same == pytest.approx(100.0)
    cluster.clock.now_s += 0.5
    booking.add_tokens(1)
    booking.release()
    assert cluster.chooser.decide(REQUEST).decode.candidates[0].adapter_ms == 0


def test_a_hot_adapter_gets_a_second_holder_and_then_has_both() -> None:
    holder, other = serving("p", Role.PREFILL, (A, AdapterPlace.DEVICE)), serving("q")
    cluster = Cluster(serving("d", Role.DECODE, (A, AdapterPlace.DEVICE)), holder, other)
    assert _prefill(cluster)[0] == "p"
    # The holder has had much more to do than the other, and nothing waits there now.
    for number in range(100):
        holder.work.add_prompt(number, 10, 200, cluster.clock())
        holder.work.end_prompt(number, cluster.clock())
    assert _prefill(cluster)[0] == "q"


def test_a_decode_worker_with_too_many_requests_loses_its_adapter_to_another() -> None:
    holder, other = (
        serving("d", Role.DECODE, (A, AdapterPlace.DEVICE)),
        serving("e", Role.DECODE),
    )
    cluster = Cluster(holder, other, serving("p", Role.PREFILL, (A, AdapterPlace.DEVICE)))
    assert cluster.chooser.route(REQUEST).decode is holder
    holder.work.num_requests = 12
    assert cluster.chooser.route(REQUEST).decode is other
    view = explain(cluster.chooser.policy, REQUEST, cluster.chooser.decide(REQUEST))
    heat = {each.worker: each.terms_ms["heat"] for each in view.decode.candidates}
    assert heat["d"] > LOAD_MS_PRIOR > heat["e"] == 0
    base = replace(REQUEST, adapter=None)
    view = explain(cluster.chooser.policy, base, cluster.chooser.decide(base))
    assert {each.terms_ms["heat"] for each in view.decode.candidates} == {0.0}


def test_load_times_are_learned_from_reports_and_bounded() -> None:
    times = LoadTimes()
    one, other = AdapterUse(times), AdapterUse(times)
    assert other.load_ms(A.digest) == LOAD_MS_PRIOR
    state = AdapterState(adapter=A, rank=8, place=AdapterPlace.HOST, load_ms=30.0)
    one.report(WorkerLoad(adapters=(state,), max_adapters=1))
    assert (one.load_ms(A.digest), other.load_ms(A.digest)) == (30.0, 30.0)
    # What is not measured takes what the others take.
    assert other.load_ms(B.digest) == pytest.approx(30.0)
    # A report with the same load is no second measurement.
    one.report(WorkerLoad(adapters=(replace(state, num_running=1),), max_adapters=1))
    assert other.load_ms(B.digest) == pytest.approx(30.0)
    for number in range(MAX_MEASURED + 10):
        times.observe(number.to_bytes(32, "little"), 50.0)
    assert len(times._by_digest) == MAX_MEASURED
    assert other.load_ms(A.digest) == pytest.approx(50.0)
