"""The loop: who leads, what is done, what is said."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from services.router.planner.board import AloneBoard, Exchange
from services.router.planner.loop import Plan, PlannerLoop
from services.router.planner.metrics import PlannerMetrics
from services.router.planner.mover import FleetMover
from services.router.planner.open import Boards
from services.router.planner.report import Report, WorkerWork, together
from services.router.planner.view import PoolView
from services.router.planning.base import Bounds, Counts, Decision, Limits, Move, Pressure
from services.router.planning.counts import Pace
from services.router.settings.planner import PlannerSettings
from services.router.usage import Usage
from shared.directory.base import WorkerLoad
from shared.errors import UnavailableError
from shared.identity import Role, WorkerId
from tests.fakes.pages.metrics_table import documented
from tests.unit.router.planning.scenes import BOUNDS, SPEED, demand
from tests.unit.router.routing.workers import endpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.planning.base import Demand
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
    interval_s: float = 5.0,
) -> PlannerLoop:
    plan = Plan(
        model="m",
        acts=acts,
        bounds=bounds,
        limits=Limits(max_workers=20),
        pace=Pace(startup_s=30, cooldown_s=60),
        interval_s=interval_s,
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


async def test_who_leads_again_goes_on_from_what_others_wanted_meanwhile() -> None:
    """Whether it has looked in the meantime, or was only stopped, which the term tells."""
    for looks in (True, False):
        clock, board, last = Clock(), Lead(Clock()), Lead(Clock())
        wanting = loop(View(demand(60.0, 4000, 10)), Workers(workers(6, 6)), last, clock)
        await wanting.look()
        own = loop(View(demand(0.1)), Workers(workers(1, 1)), board, clock)
        await own.look()
        assert own.decisions[-1].wanted_prefill == 1
        board._decision = last._decision
        if looks:
            board.leads = False
            await own.look()
            await own.look()
            assert len(own.decisions) == 2, "the same decision of another is one"
        # A Redis that has lost its memory counts terms from 1 again.
        board.leads, board.term = True, 1 if looks else 3
        await own.look()
        assert own.decisions[-1].wanted_prefill == wanting.decisions[-1].wanted_prefill > 1


async def test_a_move_of_another_leader_is_too_recent_for_this_one() -> None:
    class Moved(AloneBoard):
        async def exchange(self, report: bytes) -> Exchange:
            return replace(await super().exchange(report), moved_ago_s=59.0)

    clock, there = Clock(), Workers(workers(1, 3))
    planner = loop(View(PROMPTS), there, Moved(clock), clock)
    await planner.look()
    assert "too recent" in planner.decisions[-1].reason
    assert planner.decisions[-1].not_moved == ""


async def test_a_claim_that_came_late_and_a_worker_that_is_silent_move_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Slow(AloneBoard):
        async def claim(self, term: int, *, cooldown_s: float) -> bool:
            clock.now_s += 5.0
            return await super().claim(term, cooldown_s=cooldown_s)

    class Silent(Workers):
        async def prefer(self, move: Move) -> None:
            await asyncio.Event().wait()

    clock, there = Clock(), Workers(workers(1, 3))
    planner = loop(View(PROMPTS), there, Slow(clock), clock)
    await planner.look()
    assert (planner.decisions[-1].not_moved, there.moves) == ("the claim came too late", [])
    monkeypatch.setattr("services.router.planner.loop.CLAIM_S", 0.01)
    silent = loop(View(PROMPTS), Silent(workers(1, 3)), AloneBoard(clock), clock)
    async with asyncio.timeout(5):
        await silent.look()
    assert "did not answer within" in silent.decisions[-1].not_moved
    assert silent.num_moves == 0


async def test_whatever_fails_the_loop_goes_on_and_gives_up_the_lead_at_its_end() -> None:
    class Broken(AloneBoard):
        says: ClassVar[list[Exception | None]] = [
            None, UnavailableError("no Redis"), KeyError("a bug"), None, None,
        ]  # fmt: skip
        led: ClassVar[list[bool]] = []
        resigned = False

        async def exchange(self, report: bytes) -> Exchange:
            self.led.append(planner.leads)
            if not self.says:
                running.cancel()
                await asyncio.Event().wait()
            if (error := self.says.pop(0)) is not None:
                raise error
            return await super().exchange(report)

        async def resign(self) -> None:
            self.resigned = True

    clock, board = Clock(), Broken()
    planner = loop(View(PROMPTS), Workers(workers(1, 1)), board, clock, interval_s=0.001)
    running = asyncio.create_task(planner.run())
    with pytest.raises(asyncio.CancelledError):
        await running
    # After the first look it leads; without Redis it is not known who does.
    assert board.led == [False, True, False, False, True, True]
    assert board.resigned


def test_advice_is_what_is_wanted_and_who_acts_counts_its_moves() -> None:
    there = Workers(workers(2, 2))
    for acts, desired in ((False, Counts(3, 1)), (True, Counts(2, 2))):
        planner = loop(View(PROMPTS), there, AloneBoard(), Clock(), acts=acts)
        said = planner._desired(
            Decision(
                now_s=0.0, demand=PROMPTS, planned_per_s=1.0, present=Counts(3, 1),
                wanted=Counts(3, 1), pressure=Pressure(0.5, 0.5), reason="",
            )
        )  # fmt: skip
        assert said == desired


async def test_a_worker_that_has_left_is_not_ordered_and_another_of_its_name_neither() -> None:
    fleet: Any = None
    gone = Move(worker=WorkerId("decode-0", "0"), to=Role.PREFILL, reason="")
    mover = FleetMover(fleet, lambda: workers(1, 1))
    with pytest.raises(UnavailableError, match=r"decode-0.* has left"):
        await mover.prefer(gone)


def test_a_view_counts_what_waits_at_both_doors_and_what_a_prompt_cost() -> None:
    profile = SimpleNamespace(
        num_measurements=1, num_decode_measurements=1, prefill_coefficients=SPEED.prefill,
        decode_coefficients=SPEED.decode,
    )  # fmt: skip
    pool: Any = SimpleNamespace(fleet=lambda _: profile, everyone=lambda: workers(1, 1))
    admission: Any = SimpleNamespace(num_queued_tokens=500, num_queued=2)
    cold_start: Any = SimpleNamespace(num_waiting=3)
    clock: Any = SimpleNamespace(clock=Clock())
    view = PoolView(pool, admission, cold_start, clock, Bounds())
    view.arrived(1000)
    # The last token of a prompt is always computed.
    view.answered(Usage(prompt_tokens=1000, completion_tokens=7, cached_tokens=1000))
    said = view.report()
    assert (said.num_waiting, said.demand.held_tokens) == (5, 999.0)
    assert said.demand.prompt_ms == pytest.approx(SPEED.prefill_ms(1000, 999))
    assert said.waiting_ms == pytest.approx(500 * said.demand.prompt_ms / 1000)


def test_boards_of_one_router_differ_from_life_to_life_and_outlast_three_looks() -> None:
    def board(interval_s: float) -> Any:
        planning = PlannerSettings(planner_interval_s=interval_s)
        config: Any = SimpleNamespace(
            redis_url="redis://127.0.0.1:1/0", redis_password_file=None, planning=planning
        )
        return Boards(config, "router-1").of("m")

    assert [board(seconds)._lease_ms for seconds in (0.5, 10.0)] == [5_000, 30_000]
    assert board(1.0)._name != board(1.0)._name


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
    known = replace(SPEED, kv_tokens=7)
    waits = msgspec.structs.replace(
        other.report(), num_waiting=4, waiting_ms=3.0, num_measurements=9, speed=known
    )
    for reports in ([one.report(), waits], [waits, one.report()]):
        seen, speed = together(reports, there, now_s=0.0)
        assert (seen.num_waiting, seen.waiting_ms, speed) == (4, 3.0, known)
    # While nothing comes, plans are for the largest requests that were seen.
    idle = [View(demand(0.0, size)).report() for size in (100, 900, 300)]
    assert together(idle, there, now_s=0.0)[0].demand.prompt_tokens == 900


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
