"""Roles are preferences: who serves a role that no worker prefers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.router.routing.base import RoutingRequest
from services.router.workers.endpoint import Endpoint, OfferedVectors, WorkerSoftware
from shared.directory.base import WorkerLoad
from shared.errors import NoWorkerError
from shared.identity import Role
from shared.pooling.facts import PoolingFacts, PoolingKind, PoolTask
from tests.unit.router.routing.workers import Cluster, endpoint

REQUEST = RoutingRequest(num_prompt_tokens=10, max_tokens=10)
BOTH = frozenset({Role.PREFILL, Role.DECODE})
VECTORS = OfferedVectors(
    PoolingFacts(kind=PoolingKind.LAST, size=8, max_len=64, tasks=frozenset({PoolTask.EMBED})),
    is_only=False,
)


def worker(name: str, role: Role) -> Endpoint:
    return endpoint(name, role, serves=BOTH)


def prefer(it: Endpoint, role: Role) -> None:
    it.report(WorkerLoad(preference=role))


def test_a_worker_prefers_the_role_that_it_started_with_until_it_says_otherwise() -> None:
    it = worker("w", Role.PREFILL)
    assert it.preference is Role.PREFILL
    prefer(it, Role.DECODE)
    assert it.preference is Role.DECODE


def test_a_worker_never_prefers_what_it_does_not_serve() -> None:
    old = endpoint("old", Role.PREFILL)
    prefer(old, Role.DECODE)
    assert old.preference is Role.PREFILL
    assert not old.serves(Role.DECODE)


def test_a_change_of_preferences_changes_the_route() -> None:
    a, b = worker("a", Role.PREFILL), worker("b", Role.DECODE)
    cluster = Cluster(a, b)
    route = cluster.chooser.route(REQUEST)
    assert (route.decode, route.prefill) == (b, (a,))
    prefer(a, Role.DECODE)
    prefer(b, Role.PREFILL)
    route = cluster.chooser.route(REQUEST)
    assert (route.decode, route.prefill) == (a, (b,))


@pytest.mark.parametrize("role", list(BOTH))
def test_workers_that_all_prefer_one_role_compute_their_own_prompts(role: Role) -> None:
    a, b = worker("a", role), worker("b", role)
    cluster = Cluster(a, b)
    routes = [cluster.chooser.route(REQUEST) for _ in range(20)]
    assert {route.decode for route in routes} == {a, b}
    assert {route.prefill for route in routes} == {()}


def test_a_prefill_worker_writes_what_no_decode_worker_can_take() -> None:
    p, d = worker("p", Role.PREFILL), worker("d", Role.DECODE)
    cluster = Cluster(p, d)
    excluded = frozenset({d.record.worker})
    route = cluster.chooser.route(replace(REQUEST, excluded=excluded))
    assert (route.decode, route.prefill) == (p, ())
    d.ready = False
    assert cluster.chooser.route(REQUEST).decode is p
    d.ready = True
    assert cluster.chooser.route(REQUEST).decode is d


def test_a_worker_of_an_older_version_serves_its_role_alone() -> None:
    old, d = endpoint("old", Role.PREFILL), worker("d", Role.DECODE)
    d.ready = False
    with pytest.raises(NoWorkerError, match="no decode worker can take the request: d is not"):
        Cluster(old, d).chooser.route(REQUEST)


def test_any_worker_that_can_makes_the_vector_that_no_prefill_worker_can() -> None:
    p, d = worker("p", Role.PREFILL), worker("d", Role.DECODE)
    cluster = Cluster(p, d)
    request = RoutingRequest(num_prompt_tokens=10, max_tokens=0, pool_task=PoolTask.EMBED)
    p.software = d.software = WorkerSoftware(vectors=VECTORS)
    assert [c.endpoint for c in cluster.chooser.readers(request).candidates] == [p]
    prefer(p, Role.DECODE)
    found = cluster.chooser.readers(request).candidates
    assert {c.endpoint for c in found} == {p, d}


def test_each_worker_counts_once_for_the_hash_space() -> None:
    alone = Cluster(worker("a", Role.PREFILL))
    assert alone.chooser.hash_spaces() == {}
    two = Cluster(worker("a", Role.PREFILL), worker("b", Role.DECODE))
    assert two.chooser.hash_spaces()
