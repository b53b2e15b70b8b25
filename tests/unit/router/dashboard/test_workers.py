"""Workers' states from what a router sees of them, also after they are gone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.router.dashboard.recent import RecentRequests
from services.router.dashboard.workers import GONE_S, MAX_CHANGES, MAX_GONE, WorkerRow, WorkerWatch
from services.router.usage import Usage
from services.router.workers.endpoint import Endpoint, WorkerSoftware
from shared.directory.base import AdapterPlace, AdapterState, WorkerLoad, WorkerRecord
from shared.identity import Role, WorkerId
from shared.request.adapter_ref import AdapterRef
from tests.fakes.router.ended_requests import served


def endpoint(name: str = "decode-0", *, role: Role = Role.DECODE, ready: bool = True) -> Endpoint:
    record = WorkerRecord(
        worker=WorkerId.born(name),
        role=role,
        address="127.0.0.1:1",
        model="tiny",
        namespace="ab",
        block_size=16,
        num_blocks=100,
        max_model_len=512,
    )
    return Endpoint(record, WorkerLoad(num_free_blocks=75, num_running=2), ready=ready)


class Cluster:
    """Endpoints, and a watch with a clock that the test moves."""

    def __init__(self, *endpoints: Endpoint) -> None:
        self.endpoints = list(endpoints)
        self.now_s = 100.0
        self.num_cached = 40
        self.watch = WorkerWatch(
            lambda: self.endpoints,
            lambda _: self.num_cached,
            clock=lambda: self.now_s,
            wall_clock=lambda: self.now_s,
        )

    def look(self) -> dict[str, WorkerRow]:
        self.now_s += 1
        self.watch.look()
        return {row.name: row for row in self.watch.rows()}

    def states(self) -> list[str]:
        return [change.state.value for change in self.watch.changes()]


def test_a_row_says_what_a_worker_said_last() -> None:
    one = endpoint()
    cluster = Cluster(one)
    one.heard_s, one.software = cluster.now_s, WorkerSoftware("1.2")
    row = cluster.look()["decode-0"]
    assert (row.state, row.role, row.num_running, row.version) == ("ready", "decode", 2, "1.2")
    assert (row.blocks_used, row.blocks_cached, row.blocks_total) == (25, 40, 100)
    assert (row.lease_age_s, row.hit_rate) == (1.0, None)
    assert cluster.watch.kv_used() == {"decode-0": 0.25}


def test_a_row_counts_adapters_in_memory_and_names_those_at_work() -> None:
    places = {"a": AdapterPlace.DEVICE, "b": AdapterPlace.HOST, "c": AdapterPlace.KNOWN}
    states = tuple(
        AdapterState(
            adapter=AdapterRef(name, bytes(32), f"/{name}"),
            rank=8,
            place=place,
            num_running=int(name == "a"),
        )
        for name, place in places.items()
    )
    one, plain = endpoint(), endpoint("decode-1")
    one.report(WorkerLoad(adapters=states, max_adapters=2))
    cluster = Cluster(one, plain)
    rows = cluster.look()
    assert (rows["decode-0"].num_adapters, rows["decode-0"].adapters) == (2, ["a"])
    assert (rows["decode-1"].num_adapters, rows["decode-1"].adapters) == (None, [])
    cluster.endpoints = [plain]
    assert cluster.look()["decode-0"].num_adapters is None


def test_a_worker_that_has_said_nothing_of_its_blocks_uses_none() -> None:
    one = endpoint(ready=False)
    one.load = WorkerLoad()
    assert Cluster(one).look()["decode-0"].blocks_used == 0


def test_a_row_has_the_role_that_a_worker_prefers_now() -> None:
    one = endpoint()
    one.record = replace(one.record, serves=frozenset({Role.PREFILL, Role.DECODE}))
    cluster = Cluster(one)
    assert cluster.look()["decode-0"].serves == ["decode", "prefill"]
    one.report(WorkerLoad(preference=Role.PREFILL))
    row = cluster.look()["decode-0"]
    assert (row.role, row.first_role) == ("prefill", "decode")
    assert [(change.role, change.prefers) for change in cluster.watch.changes()] == [
        ("decode", False),
        ("prefill", True),
    ]


def test_states_follow_each_other() -> None:
    one = endpoint(ready=False)
    cluster = Cluster(one)
    cluster.look()
    one.ready = True
    cluster.look()
    one.ready = False
    assert cluster.look()["decode-0"].state == "suspended"
    one.ready = True
    cluster.look()
    one.refused = True
    draining = cluster.look()["decode-0"]
    assert cluster.look()["decode-0"].since_s == draining.since_s
    cluster.endpoints.clear()
    left = cluster.look()["decode-0"]
    assert (left.state, left.num_running, left.blocks_used) == ("left", 0, 0)
    assert cluster.states() == ["joining", "ready", "suspended", "ready", "draining", "left"]
    assert [change.number for change in cluster.watch.changes(after=4)] == [5, 6]


def test_one_whose_lease_ended_is_lost_until_it_returns_or_nobody_remembers() -> None:
    cluster = Cluster(endpoint(), endpoint("decode-1"))
    cluster.look()
    cluster.endpoints.pop()
    assert cluster.look()["decode-1"].state == "lost"
    assert "decode-1" not in cluster.watch.kv_used()
    cluster.endpoints.append(endpoint("decode-1", ready=False))
    assert cluster.look()["decode-1"].state == "joining"
    cluster.endpoints.pop()
    cluster.look()
    cluster.now_s += GONE_S
    assert list(cluster.look()) == ["decode-0"]


def test_a_restart_between_two_looks_is_an_end_and_a_beginning() -> None:
    cluster = Cluster(endpoint())
    cluster.look()
    cluster.endpoints[:] = [endpoint()]
    assert cluster.look()["decode-0"].state == "ready"
    assert cluster.states() == ["ready", "lost", "ready"]


def test_what_is_kept_of_the_past_is_bounded() -> None:
    cluster = Cluster()
    for number in range(MAX_GONE + 50):
        cluster.endpoints[:] = [endpoint(f"decode-{number}")]
        rows = cluster.look()
    assert len(rows) == MAX_GONE + 1
    assert len(cluster.watch.changes()) == MAX_CHANGES


def test_hit_rates_belong_to_the_worker_that_had_the_prefix() -> None:
    cluster = Cluster(endpoint("prefill-0", role=Role.PREFILL), endpoint())
    cluster.look()
    row = RecentRequests().add(served(num_prompt_tokens=20))
    cluster.watch.ended(row, Usage(transferred_hit_tokens=15, local_hit_tokens=5))
    # Of a worker that nobody knows nothing is kept.
    cluster.watch.ended(
        RecentRequests().add(served("other")), Usage(local_hit_tokens=20, transferred_hit_tokens=0)
    )
    rows = cluster.look()
    assert rows["prefill-0"].hit_rate == pytest.approx(15 / 40, abs=0.01)
    assert rows["decode-0"].hit_rate == pytest.approx(25 / 40, abs=0.01)
    assert [row.name for row in cluster.watch.rows()] == ["prefill-0", "decode-0"]
