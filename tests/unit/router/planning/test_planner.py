"""Wanted counts over time, and moves."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from services.router.planning.base import Bounds, Counts, Limits, Observation
from services.router.planning.capacity import Capacity
from services.router.planning.counts import IDLE_S, Pace, fit
from services.router.planning.planner import Planner
from services.router.planning.pools import by_start
from shared.identity import Role
from tests.unit.router.planning.scenes import (
    ANY_BOUNDS,
    BOUNDS,
    COUNTS,
    LIMITS,
    RATES,
    SPEED,
    demand,
    seen,
    workers,
)

if TYPE_CHECKING:
    from services.router.planning.base import Decision

#: Of each interval: requests/s, prompt tokens, output tokens, sequences per decode worker, a
#: prefill worker's queue [ms].
WEATHER = st.lists(
    st.tuples(
        RATES,
        st.sampled_from([100, 2000, 16_000]),
        st.sampled_from([1, 200, 3000]),
        st.sampled_from([0, 5, 60]),
        st.sampled_from([0.0, 100.0, 30_000.0]),
    ),
    min_size=1,
    max_size=40,
)
INTERVAL_S, COOLDOWN_S = 5.0, 60.0


def decisions(
    weather: list[tuple[float, int, int, int, float]],
    counts: Counts,
    *,
    bounds: Bounds,
    limits: Limits | None = None,
) -> list[Decision]:
    """Carry every move out; counts stay."""
    planner = Planner(bounds, limits or Limits(max_workers=20))
    states, found = workers(counts), []
    for i, (rate, prompt, output, running, queue_ms) in enumerate(weather):
        now = [
            replace(
                w,
                queue_ms=queue_ms if w.preference is Role.PREFILL else 0.0,
                num_running=running if w.preference is Role.DECODE else 0,
            )
            for w in states
        ]
        look = Observation(now_s=i * INTERVAL_S, demand=demand(rate, prompt, output), workers=now)
        decision = planner.look(look, SPEED)
        found.append(decision)
        if decision.move is not None:
            planner.moved(decision.now_s)
            states = [
                w if w.worker != decision.move.worker else replace(w, preference=decision.move.to)
                for w in now
            ]
    return found


@given(weather=WEATHER, counts=COUNTS, bounds=ANY_BOUNDS)
def test_at_most_one_move_per_cooldown_and_no_worker_is_made_or_lost(
    weather: list[tuple[float, int, int, int, float]], counts: Counts, bounds: Bounds
) -> None:
    found = decisions(weather, counts, bounds=bounds)
    moved_s = [decision.now_s for decision in found if decision.move is not None]
    assert all(b - a >= COOLDOWN_S for a, b in itertools.pairwise(moved_s))
    for decision in found:
        assert decision.present.total == counts.total
        # One of each kind stays.
        assert decision.present.prefill >= min(1, counts.prefill)
        assert decision.present.decode >= min(1, counts.decode)
        if decision.move is not None:
            assert decision.after is not None
            assert decision.after.most <= 0.85 * decision.pressure.most
            to_prefill = decision.move.to is Role.PREFILL
            giver = decision.after.decode if to_prefill else decision.after.prefill
            assert giver <= 0.85


@given(weather=WEATHER, counts=COUNTS, bounds=ANY_BOUNDS, limits=LIMITS)
def test_wanted_counts_keep_their_limits_and_fall_slowly(
    weather: list[tuple[float, int, int, int, float]],
    counts: Counts,
    bounds: Bounds,
    limits: Limits,
) -> None:
    found = decisions(weather, counts, bounds=bounds, limits=limits)
    budget = max(limits.max_workers, limits.min_prefill + limits.min_decode)
    for decision in found:
        assert limits.min_prefill <= decision.wanted.prefill
        assert limits.min_decode <= decision.wanted.decode
        assert decision.wanted.total <= budget
    if found[0].wanted.total < budget and counts.total < budget:
        for before, after in itertools.pairwise(found):
            if after.wanted.total < budget and before.wanted.total < budget:
                for role in Role.PREFILL, Role.DECODE:
                    lost = before.wanted.of(role) - after.wanted.of(role)
                    assert lost <= max(1, before.wanted.of(role) // 4)


@given(wanted=st.builds(Counts, st.integers(0, 500), st.integers(0, 500)), limits=LIMITS)
def test_a_budget_is_shared_in_proportion(wanted: Counts, limits: Limits) -> None:
    fitted = fit(wanted, limits)
    assert fitted.prefill >= limits.min_prefill
    assert fitted.decode >= limits.min_decode
    assert fitted.total <= max(limits.max_workers, limits.min_prefill + limits.min_decode)
    assert fit(fitted, limits) == fitted
    if wanted.total <= limits.max_workers:
        assert fitted.prefill <= max(wanted.prefill, limits.min_prefill)
    assert fit(Counts(30, 10), Limits(max_workers=8)) == Counts(6, 2)
    # A kind that is wanted keeps a worker, though its share is less than a half.
    none = Limits(min_prefill=0, min_decode=0)
    assert (fit(Counts(1, 30), none), fit(Counts(30, 1), none)) == (Counts(1, 7), Counts(7, 1))


@given(wanted=COUNTS, preferring=COUNTS, started=COUNTS, limits=LIMITS)
def test_moves_make_what_is_wanted_of_what_is_started(
    wanted: Counts, preferring: Counts, started: Counts, limits: Limits
) -> None:
    wanted = fit(wanted, limits)
    desired = by_start(wanted, preferring, started, limits)
    assert desired.total == wanted.total
    assert min(desired.prefill, desired.decode) >= 0
    # Only the sum changes, and only in one direction.
    more = (desired.prefill >= started.prefill, desired.decode >= started.decode)
    fewer = (desired.prefill <= started.prefill, desired.decode <= started.decode)
    assert all(more) or all(fewer) or not wanted.total
    # A move is not undone by an autoscaler, and what is on its way is not ordered twice.
    assert by_start(wanted, wanted, desired, limits) == desired
    assert by_start(Counts(3, 2), Counts(2, 1), Counts(2, 1), Limits()) == Counts(3, 2)
    assert by_start(Counts(3, 1), Counts(3, 1), Counts(2, 2), Limits()) == Counts(2, 2)
    assert by_start(Counts(4, 1), Counts(3, 1), Counts(2, 2), Limits()) == Counts(3, 2)


def steady(
    rate: float, *, bounds: Bounds = BOUNDS, num_output: int = 200, start: Counts, for_s: float
) -> list[Decision]:
    planner = Planner(bounds, Limits(max_workers=1000), pace=Pace(startup_s=30, cooldown_s=30))
    found = []
    for i in range(int(for_s / INTERVAL_S)):
        look = seen(i * INTERVAL_S, demand(rate, num_output=num_output), start)
        found.append(planner.look(look, SPEED))
    return found


def test_counts_follow_the_load_up_at_once_and_down_after_a_while() -> None:
    up = steady(60.0, start=Counts(1, 1), for_s=60)
    assert up[0].wanted.prefill == 3
    assert up[-1].wanted.prefill >= 7
    down = steady(1.0, start=Counts(10, 10), for_s=600)
    assert down[3].wanted == Counts(10, 10)
    assert down[-1].wanted == Counts(1, 1)
    counts = [decision.wanted.prefill for decision in down]
    assert {a - b for a, b in itertools.pairwise(counts)} == {0, 1, 2}


def test_each_kind_has_a_cooldown_of_its_own() -> None:
    """Prefill workers are added until 10 s; decode workers are given back from 30 s on."""
    found = steady(60.0, num_output=1, start=Counts(1, 10), for_s=35)
    assert found[2].wanted.prefill > found[1].wanted.prefill
    assert [decision.wanted.decode for decision in found[-2:]] == [10, 8]


def test_a_worker_is_kept_that_a_tenth_more_load_would_need() -> None:
    def needs(rate: float) -> int:
        return Capacity(SPEED, BOUNDS, demand(rate)).num_prefill()

    rate = next(r / 10 for r in range(100, 500) if needs(r / 10) < needs(r / 10 * 1.1))
    start = Counts(needs(rate) + 1, 50)
    assert steady(rate, start=start, for_s=300)[-1].wanted.prefill == start.prefill


def test_a_rising_rate_is_planned_for_when_its_workers_will_have_started() -> None:
    planner = Planner(BOUNDS, Limits(max_workers=1000), pace=Pace(startup_s=60))
    for i in range(60):
        last = planner.look(seen(i * 5.0, demand(i / 2), Counts(5, 5)), SPEED)
    # A tenth of a request/s more each second.
    assert last.planned_per_s > last.demand.requests_per_s + 3


def test_a_backlog_is_no_reason_for_more_while_workers_for_it_start() -> None:
    planner = Planner(BOUNDS, Limits(max_workers=1000))
    wanted = [
        planner.look(seen(i * 5.0, demand(2.0), Counts(1, 1), queue_ms=60_000.0), SPEED).wanted
        for i in range(6)
    ]
    assert {counts.prefill for counts in wanted} == {3}


def test_sequences_count_as_they_are_though_few_requests_come() -> None:
    full = seen(0.0, demand(0.1), Counts(1, 1), num_running=100)
    assert Planner(BOUNDS, Limits(max_workers=20)).look(full, SPEED).wanted.decode == 3


def test_a_cluster_with_a_least_number_or_with_work_is_never_idle() -> None:
    least = Planner(BOUNDS, Limits(min_prefill=0, min_decode=1))
    works = Planner(BOUNDS, Limits(min_prefill=0, min_decode=0))
    for at in (0.0, IDLE_S / 2, IDLE_S, 2 * IDLE_S):
        assert least.look(seen(at, demand(0.0), Counts(1, 1)), SPEED).wanted == Counts(1, 1)
        busy = seen(at, demand(0.0), Counts(1, 1), queue_ms=50.0)
        assert works.look(busy, SPEED).wanted == Counts(1, 1)


def test_a_steady_load_changes_nothing_forever() -> None:
    for rate in (1.0, 7.3, 20.0):
        found = steady(rate, start=Counts(5, 5), for_s=1200)
        settled = {decision.wanted for decision in found[len(found) // 2 :]}
        assert len(settled) == 1


def test_infeasible_bounds_warn_and_want_what_no_bound_wants() -> None:
    bounds = Bounds(max_ttft_ms=5.0, max_itl_ms=5.0)
    planner = Planner(bounds, Limits(max_workers=1000))
    wanted = replace(demand(20.0), hopeless=1.0)
    for i in range(200):
        last = planner.look(
            Observation(now_s=i * 5.0, demand=wanted, workers=workers(Counts(2, 2))), SPEED
        )
    assert last.wanted == steady(20.0, bounds=Bounds(), start=Counts(2, 2), for_s=1000)[-1].wanted
    assert len(last.warnings) == 2
    assert "more workers do not help" in last.warnings[0]


def test_an_idle_cluster_is_given_back_and_wanted_again_by_the_first_request() -> None:
    planner = Planner(BOUNDS, Limits(min_prefill=0, min_decode=0), pace=Pace(cooldown_s=5))
    at = 0.0
    while (last := planner.look(seen(at, demand(0.0), Counts(1, 1)), SPEED)).wanted.total:
        at += 5.0
    assert at >= IDLE_S
    assert "no request" in last.reason
    waits = Observation(now_s=at + 5, demand=demand(0.0), num_waiting=1)
    assert planner.look(waits, SPEED).wanted == Counts(1, 1)
    # A planner that begins at none, or takes over there, wakes no worker up.
    other = Planner(BOUNDS, Limits(min_prefill=0, min_decode=0))
    for at in (0.0, 5.0):
        assert not other.look(seen(at, demand(0.0), Counts(0, 0)), SPEED).wanted.total
    assert other.look(seen(10.0, demand(0.1), Counts(0, 0)), SPEED).wanted == Counts(1, 1)


def test_what_waits_counts_though_nothing_arrives_any_more() -> None:
    """A saturated prefill worker shows no more completions, however much waits."""
    quiet = Planner(BOUNDS, Limits()).look(seen(0.0, demand(2.0), Counts(1, 1)), SPEED)
    late = Planner(BOUNDS, Limits()).look(
        seen(0.0, demand(2.0), Counts(1, 1), queue_ms=30_000.0), SPEED
    )
    assert quiet.wanted.prefill == 1
    assert late.wanted.prefill > 1


def test_a_move_takes_the_worker_with_least_of_its_work_to_where_it_is_missing() -> None:
    planner = Planner(BOUNDS, Limits())
    states = workers(Counts(1, 3))
    states[1] = replace(states[1], num_running=3, num_held_tokens=900)
    states[2] = replace(states[2], num_running=1, num_held_tokens=200)
    states[3] = replace(states[3], movable=False)
    look = Observation(now_s=0.0, demand=demand(12.0, 4000, 10), workers=states)
    decision = planner.look(look, SPEED)
    assert decision.move is not None
    assert (str(decision.move.worker.name), decision.move.to) == ("decode-1", Role.PREFILL)
    assert "prefill is short" in decision.reason
    planner.moved(0.0)
    again = planner.look(Observation(now_s=59.0, demand=look.demand, workers=states), SPEED)
    assert again.move is None
    assert "too recent" in again.reason
    assert (
        planner.look(Observation(now_s=60.0, demand=look.demand, workers=states), SPEED).move
        is not None
    )


def test_the_shortest_queue_is_moved_and_nothing_moves_where_nothing_is_short() -> None:
    states = workers(Counts(3, 1))
    states[0] = replace(states[0], queue_ms=50.0)
    states[1] = replace(states[1], queue_ms=10.0, num_held_tokens=900)
    states[2] = replace(states[2], queue_ms=90.0)
    look = Observation(now_s=100.0, demand=demand(2.0, 100, 800), workers=states)
    decision = Planner(BOUNDS, Limits()).look(look, SPEED)
    assert decision.move is not None
    assert (str(decision.move.worker.name), decision.move.to) == ("prefill-1", Role.DECODE)
    # The other router's clock may be behind.
    planner = Planner(BOUNDS, Limits())
    planner.moved(90.0)
    planner.moved(10.0)
    assert planner.look(look, SPEED).move is None
    # A move would halve the pressure, and nothing presses.
    calm = Planner(BOUNDS, Limits()).look(seen(0.0, demand(6.5, 2000, 1), Counts(1, 3)), SPEED)
    assert 0.8 < calm.pressure.prefill < 0.9
    assert calm.move is None
    assert "no kind of worker is short" in calm.reason
    # The last worker of its kind stays, though it has nothing to do.
    full = seen(0.0, demand(0.0), Counts(1, 1), num_running=100)
    assert "prefill has none to give" in Planner(BOUNDS, Limits()).look(full, SPEED).reason
