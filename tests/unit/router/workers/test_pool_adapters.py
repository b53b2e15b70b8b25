"""What a name means, by the reports of workers and by this router's orders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.workers.adapters import REPORTED_S, PoolAdapters
from shared.directory.base import AdapterPlace, AdapterState, WorkerLoad
from shared.request.adapter_ref import AdapterRef
from tests.unit.router.routing.workers import Clock, endpoint

if TYPE_CHECKING:
    from services.router.workers.endpoint import Endpoint


def ref(name: str, content: int, path: str = "/a") -> AdapterRef:
    return AdapterRef(name, bytes([content]) * 32, path)


def told(*refs: AdapterRef) -> WorkerLoad:
    states = (AdapterState(adapter=each, rank=8, place=AdapterPlace.HOST) for each in refs)
    return WorkerLoad(adapters=tuple(states), max_adapters=4)


class Pool:
    """Workers, the adapters that they report, and a clock."""

    def __init__(self, *loads: WorkerLoad) -> None:
        self.clock = Clock()
        self.workers: list[Endpoint] = [
            endpoint(f"w{i}", joined_ms=i + 1) for i, _ in enumerate(loads)
        ]
        self.report(*loads)
        self.adapters = PoolAdapters(lambda: self.workers, clock=self.clock)

    def report(self, *loads: WorkerLoad) -> None:
        for worker, load in zip(self.workers, loads, strict=True):
            worker.report(load)

    def names(self) -> list[str]:
        return [each.name for each in self.adapters.all()]


def test_a_pool_has_what_any_of_its_workers_has() -> None:
    a, b = ref("a", 1), ref("b", 2)
    pool = Pool(told(b), told(a), told())
    assert pool.adapters.all() == [a, b]
    assert (pool.adapters.find("a"), pool.adapters.find("c")) == (a, None)
    pool.workers = pool.workers[:1]
    assert pool.names() == ["b"]


def test_a_refused_worker_decides_nothing() -> None:
    pool = Pool(told(ref("a", 1)))
    pool.workers[0].refusal = "other weights"
    assert pool.adapters.find("a") is None


def test_most_workers_decide_what_a_name_means_and_then_the_oldest() -> None:
    old, new = ref("a", 1), ref("a", 2, "/new")
    pool = Pool(told(old), told(new), told(new))
    assert pool.adapters.all() == [new]
    pool.report(told(new), told(old), told())
    assert pool.adapters.find("a") == new


def test_an_order_counts_at_once_and_against_a_majority() -> None:
    old, new = ref("a", 1), ref("a", 2, "/new")
    pool = Pool(told(old), told(old), told(old))
    pool.adapters.loaded(new)
    assert pool.adapters.find("a") == new
    # One worker reports it, and two of other routers' orders do not yet.
    pool.report(told(old), told(new), told(old))
    pool.clock.now_s += REPORTED_S
    assert pool.adapters.find("a") == new
    # Another router has replaced it everywhere.
    pool.report(told(old), told(old), told(old))
    assert pool.adapters.find("a") == old


def test_an_unloaded_name_is_gone_at_once_and_may_come_back() -> None:
    pool = Pool(told(ref("a", 1)), told(ref("a", 1)))
    pool.adapters.unloaded("a")
    assert (pool.adapters.find("a"), pool.names()) == (None, [])
    pool.report(told(), told())
    pool.clock.now_s += REPORTED_S
    assert pool.adapters.find("a") is None
    # Another router has loaded it again.
    pool.report(told(ref("a", 1)), told(ref("a", 1)))
    assert pool.names() == ["a"]


def test_a_loaded_name_is_listed_before_it_is_reported_and_not_after_all_left() -> None:
    pool = Pool(told())
    pool.adapters.loaded(ref("a", 1))
    assert pool.names() == ["a"]
    pool.clock.now_s += REPORTED_S
    assert pool.names() == []


def test_names_outlast_the_time_between_two_lives_of_all_workers() -> None:
    old, new = ref("a", 1), ref("a", 2)
    pool = Pool(told(old), told(old))
    assert pool.names() == ["a"]
    # All have left for new weights; the first that is back has not reported yet.
    pool.workers = []
    assert (pool.adapters.find("a"), pool.names()) == (old, ["a"])
    pool.workers = [endpoint("w0", joined_ms=3)]
    assert (pool.adapters.find("a"), pool.names()) == (old, ["a"])
    pool.report(told(new))
    assert pool.adapters.find("a") == new
    pool.report(told())
    assert (pool.adapters.find("a"), pool.names()) == (None, [])
    pool.report(told(new))
    assert pool.names() == ["a"]
    # Others come, without adapters.
    pool.workers = [endpoint("w1")]
    assert pool.names() == ["a"]
    pool.report(WorkerLoad())
    assert (pool.adapters.find("a"), pool.names()) == (None, [])
