"""The loop: who leads, what is done, what is said."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry

from services.router.planner.board import AloneBoard, Exchange
from services.router.planner.loop import Plan, PlannerLoop
from services.router.planner.metrics import PlannerMetrics
from services.router.planner.report import Report, WorkerWork, together
from services.router.planning.base import Bounds, Limits
from services.router.planning.counts import Pace
from shared.directory.base import WorkerLoad
from shared.errors import UnavailableError
from shared.identity import Role
from tests.fakes.metrics_table import documented
from tests.unit.router.planning.scenes import BOUNDS, SPEED, demand
from tests.unit.router.routing.workers import endpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.planning.base import Demand, Move
    from services.router.workers.endpoint import Endpoint


def workers(num_prefill: int, num_decode: int) -> list[Endpoint]:
    found = []
    for role, count in ((Role.PREFILL, num_prefill), (Role.DECODE, num_decode)):
        for i in range(count):
            each = endpoint(f"{role}-{i}", role)
            each.record = replace(each.record, serves=frozenset(Role))
            found.append(each)
    return found


class View:
    """Says what a test wants."""

    def __init__(self, demand: Demand) -> None:
        self.demand = demand
        self.work: dict[str, WorkerWork] = {}

    def speed(self) -> object:
        return SPEED

    def report(self) -> Report:
        return Report(
            demand=self.demand,
            speed=SPEED,
            num_measurements=1,
            waiting_ms=0.0,
            num_waiting=0,
            work=self.work,
        )


class Workers:
    """Carries orders out as workers do, unless they are to fail."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self.endpoints = endpoints
        self.moves: list[Move] = []
        self.fails = False

    async def prefer(self, move: Move) -> None:
        if self.fails:
            raise UnavailableError("the worker is on fire")
        self.moves.append(move)
        [moved] = [each for each in self.endpoints if each.record.worker == move.worker]
        moved.report(WorkerLoad(preference=move.to))


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def loop(
    view: View,
    there: Workers,
    board: AloneBoard,
    clock: Clock,
    *,
    acts: bool = True,
    bounds: Bounds = BOUNDS,
) -> PlannerLoop:
    plan = Plan(
        model="m",
        acts=acts,
        bounds=bounds,
        limits=Limits(max_workers=20),
        pace=Pace(startup_s=30, cooldown_s=60),
        interval_s=5.0,
        router="router-1",
    )
    return PlannerLoop(plan, view, lambda: there.endpoints, board, there, clock=clock)  # type: ignore[arg-type]


PROMPTS = demand(12.0, 4000, 10)


async def test_act_moves_a_worker_once_per_cooldown_and_says_so() -> None:
    clock, there = Clock(), Workers(workers(1, 3))
    planner = loop(View(PROMPTS), there, AloneBoard(clock), clock)
    await planner.look()
    assert [move.to for move in there.moves] == [Role.PREFILL]
    last = planner.decisions[-1]
    assert (last.moved_to, last.present_prefill, last.wanted_prefill) == ("prefill", 1, 3)
    assert "prefill is short" in last.reason
    for _ in range(11):
        clock.now_s += 5
        await planner.look()
    assert len(there.moves) == 1
    clock.now_s += 5
    await planner.look()
    assert [move.to for move in there.moves] == [Role.PREFILL, Role.PREFILL]
    # One decode worker stays.
    clock.now_s += 600
    await planner.look()
    assert len(there.moves) == planner.num_moves == 2


async def test_advise_moves_nothing_and_says_what_it_would_do() -> None:
    clock, there = Clock(), Workers(workers(1, 3))
    planner = loop(View(PROMPTS), there, AloneBoard(clock), clock, acts=False)
    await planner.look()
    assert not there.moves
    assert planner.decisions[-1].not_moved == "the planner only advises"


async def test_a_worker_that_cannot_be_moved_costs_a_cooldown() -> None:
    clock, there = Clock(), Workers(workers(1, 3))
    there.fails = True
    planner = loop(View(PROMPTS), there, AloneBoard(clock), clock)
    await planner.look()
    assert planner.decisions[-1].not_moved == "the worker is on fire"
    there.fails = False
    clock.now_s += 30
    await planner.look()
    assert (len(there.moves), planner.num_moves) == (0, 0)


async def test_workers_of_older_versions_are_not_moved() -> None:
    clock, there = Clock(), Workers(workers(1, 3))
    for each in there.endpoints:
        each.record = replace(each.record, serves=frozenset())
    planner = loop(View(PROMPTS), there, AloneBoard(clock), clock)
    await planner.look()
    assert not there.moves
    assert "decode has none to give" in planner.decisions[-1].reason


class Lead(AloneBoard):
    """Another router leads, if it is said so. One more reports, of a version to come."""

    leads, term = True, 1

    async def exchange(self, report: bytes) -> Exchange:
        found = await super().exchange(report)
        reports = (report, b"of another version")
        return replace(found, leads=self.leads, term=self.term, reports=reports)


async def test_who_follows_says_what_the_leader_decided_and_does_nothing() -> None:
    clock, there, board = Clock(), Workers(workers(1, 3)), Lead(Clock())
    leader = loop(View(PROMPTS), Workers(workers(1, 3)), board, clock)
    await leader.look()
    follower = loop(View(demand(0.1)), there, board, clock)
    board.leads = False
    await follower.look()
    assert (follower.leads, leader.leads, there.moves) == (False, True, [])
    assert follower.decisions[-1] == leader.decisions[-1]
    assert (follower.leader, follower.num_moves) == ("router-1", 1)
    # It goes on from there when the leader is gone.
    board.leads, board.term = True, 2
    follower.view.demand = demand(0.0)  # type: ignore[attr-defined]
    await follower.look()
    assert follower.leads
    assert follower.decisions[-1].wanted_prefill == leader.decisions[-1].wanted_prefill


def test_reports_of_routers_add_up() -> None:
    there = workers(1, 1)
    name = str(there[0].record.worker)
    one, other = View(demand(1.0, 1000, 100)), View(demand(3.0, 5000, 300))
    one.work[name], other.work[name] = WorkerWork(5.0, 1, 10), WorkerWork(7.0, 2, 20)
    seen, _ = together([one.report(), other.report()], there, now_s=0.0)
    assert (seen.demand.requests_per_s, seen.demand.prompt_tokens) == (4.0, 4000.0)
    assert seen.demand.output_tokens == 250.0
    [state] = [worker for worker in seen.workers if str(worker.worker) == name]
    assert (state.queue_ms, state.num_running, state.num_held_tokens) == (12.0, 3, 30)


async def test_metrics_say_what_is_wanted_there_and_done() -> None:
    clock, there = Clock(), Workers(workers(1, 3))
    planner = loop(View(PROMPTS), there, AloneBoard(clock), clock, bounds=Bounds(max_itl_ms=0.5))
    registry = CollectorRegistry()
    registry.register(PlannerMetrics([planner]))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"baton_planner_{name}", {"model_name": "m", **labels})

    assert value("desired_workers", role="prefill") is None
    assert value("leads") == 0
    await planner.look()
    assert value("desired_workers", role="prefill") == 3
    assert value("workers", role="decode") == 3
    assert value("moves_total") == value("warnings") == value("leads") == 1
    assert value("pressure", role="prefill") == pytest.approx(
        planner.decisions[-1].pressure_prefill
    )


def test_the_page_of_metrics_has_these() -> None:
    rows = documented("Router that plans")
    families = {family.name: family for family in PlannerMetrics([]).collect()}
    assert rows.keys() == families.keys()
    for name, family in families.items():
        assert (rows[name].kind, rows[name].labels) == (family.type, set(family._labelnames))
