"""How many workers a demand needs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.planning.base import Bounds, Counts
from services.router.planning.capacity import MOST_BUSY, TARGET_BUSY, Capacity
from services.router.planning.planner import best_split
from tests.unit.router.planning.scenes import ANY_BOUNDS, BOUNDS, RATES, SPEED, SPEEDS, demand

if TYPE_CHECKING:
    from services.router.planning.speed import Speed

TOKENS = st.integers(1, 20_000)
OUTPUTS = st.integers(1, 2000)


@given(speed=SPEEDS, bounds=ANY_BOUNDS, rates=st.tuples(RATES, RATES), prompt=TOKENS, out=OUTPUTS)
def test_more_requests_never_need_fewer_workers(
    speed: Speed, bounds: Bounds, rates: tuple[float, float], prompt: int, out: int
) -> None:
    less, more = (
        Capacity(speed, bounds, demand(rate, prompt, out, speed)) for rate in sorted(rates)
    )
    assert less.num_prefill() <= more.num_prefill()
    assert less.num_decode() <= more.num_decode()
    both = Counts(2, 2)
    assert less.pressure(both).prefill <= more.pressure(both).prefill * (1 + 1e-9)
    assert less.pressure(both).decode <= more.pressure(both).decode * (1 + 1e-9)


@given(speed=SPEEDS, rate=RATES, prompts=st.tuples(TOKENS, TOKENS), out=OUTPUTS)
def test_longer_prompts_never_need_fewer_workers(
    speed: Speed, rate: float, prompts: tuple[int, int], out: int
) -> None:
    """Without bounds: one that cannot be met any more counts no longer."""
    less, more = (
        Capacity(speed, Bounds(), demand(rate, prompt, out, speed)) for prompt in sorted(prompts)
    )
    assert less.num_prefill() <= more.num_prefill()
    assert less.num_decode() <= more.num_decode()


@given(speed=SPEEDS, bounds=ANY_BOUNDS, rate=RATES, prompt=TOKENS, out=OUTPUTS)
def test_the_needed_workers_bear_the_load_and_one_fewer_does_not(
    speed: Speed, bounds: Bounds, rate: float, prompt: int, out: int
) -> None:
    capacity = Capacity(speed, bounds, demand(rate, prompt, out, speed))
    needed = Counts(capacity.num_prefill(), capacity.num_decode())
    assert capacity.pressure(needed).most <= 1 + 1e-6
    if needed.prefill > 1:
        assert capacity.pressure(Counts(needed.prefill - 1, needed.decode)).prefill > 1
    if needed.decode > 1:
        assert capacity.pressure(Counts(needed.prefill, needed.decode - 1)).decode > 1


@given(speed=SPEEDS, rate=RATES, prompt=TOKENS, out=OUTPUTS)
def test_bounds_that_one_request_alone_violates_want_no_worker(
    speed: Speed, rate: float, prompt: int, out: int
) -> None:
    wanted = replace(demand(rate, prompt, out, speed), hopeless=1.0)
    bounds = Bounds(max_ttft_ms=1e-3, max_itl_ms=1e-3)
    bounded, free = Capacity(speed, bounds, wanted), Capacity(speed, Bounds(), wanted)
    assert (bounded.num_prefill(), bounded.num_decode()) == (free.num_prefill(), free.num_decode())
    assert len(bounded.warnings) == len(free.warnings) + 2


def test_numbers_of_one_case() -> None:
    """5 + 100 + 2 ms a prompt; 2100 tokens a sequence: 0.71 ms each in a step."""
    capacity = Capacity(SPEED, BOUNDS, demand(10.0))
    assert capacity.demand.prefill_work == pytest.approx(1.07)
    assert capacity.num_prefill() == 2
    # Of so many prompts 1 in 20 waits longer than 900 - 107 ms.
    busy = capacity.busy_share(1)
    assert busy * math.exp(-793 / (107 / 2 / (1 - busy))) == pytest.approx(0.05, rel=1e-3)
    assert capacity.busy_share(20) == MOST_BUSY
    assert capacity.batch == pytest.approx(26 / 0.71)
    # 2 tokens per ms: 2 * 10 / (1 - 2 * 0.71 / n), and the spread of their number.
    assert capacity.num_sequences(3) == pytest.approx(20 / (1 - 1.42 / 3))
    assert capacity.num_decode() == 2 + (20 / 0.29 + math.sqrt(20 / 0.29) > 2 * capacity.batch)
    assert Capacity(SPEED, Bounds(), demand(10.0)).busy_share(1) == TARGET_BUSY


def test_numbers_of_two_workers_and_of_unequal_prompts() -> None:
    """Sakasegawa: one of two workers is free more often than one of one."""
    tight = Bounds(max_ttft_ms=130.0)
    busy = Capacity(SPEED, tight, demand(10.0)).busy_share(2)
    waits = busy ** (math.sqrt(6) - 1)
    assert waits * math.exp(-10 / (107 / 2 / (2 * (1 - busy)))) == pytest.approx(0.05, rel=1e-3)
    unequal = Capacity(SPEED, BOUNDS, replace(demand(10.0), variation=3.0)).busy_share(1)
    assert unequal * math.exp(-793 / (107 * 2 / (1 - unequal))) == pytest.approx(0.05, rel=1e-3)


def test_a_worker_has_as_many_sequences_as_its_pool_and_its_places_allow() -> None:
    loose = Bounds(max_itl_ms=1e6)
    assert Capacity(SPEED, loose, demand(1.0)).batch == pytest.approx(0.9 * 64)
    assert Capacity(SPEED, loose, demand(1.0, 9_900)).batch == pytest.approx(0.9 * 20)
    assert Capacity(SPEED, Bounds(), demand(1.0)).batch == pytest.approx(0.75 * 64)
    # One sequence is more than a pool: more workers would not help.
    huge = Capacity(SPEED, loose, demand(1.0, 300_000))
    assert huge.batch == 1.0
    assert ["worker's pool 200000" in warning for warning in huge.warnings] == [True]


def test_a_tight_bound_leaves_workers_idle() -> None:
    tight = Capacity(SPEED, Bounds(max_ttft_ms=130.0), demand(10.0))
    assert tight.busy_share(2) < 0.5
    assert tight.num_prefill() > 2
    assert tight.late_share(tight.num_prefill()) <= 0.05


@pytest.mark.parametrize(
    ("num_tokens", "num_output", "split"),
    [(8000, 20, Counts(5, 1)), (200, 2000, Counts(1, 5))],
)
def test_workers_are_divided_by_what_is_asked(
    num_tokens: int, num_output: int, split: Counts
) -> None:
    capacity = Capacity(SPEED, BOUNDS, demand(3.0, num_tokens, num_output))
    assert best_split(6, capacity) == split


def test_waiting_prompts_count_only_if_they_wait_too_long() -> None:
    capacity = Capacity(SPEED, BOUNDS, demand(5.0))
    present = Counts(2, 2)
    quiet = capacity.pressure(present)
    assert capacity.pressure(present, backlog_ms=500) == quiet
    # Each worker may have half of 793 ms waiting; the rest is to be gone in ten seconds.
    late = (20_000 - 793) / 1000 / 10
    assert capacity.pressure(present, backlog_ms=20_000).prefill == pytest.approx(
        (5 * 0.107 + late) / (2 * capacity.busy_share(2))
    )
    assert capacity.pressure(present, num_running=10_000).decode > 1


def test_hopeless_prompts_are_no_reason_for_workers_though_the_mean_is_in_time() -> None:
    wanted = demand(10.0)
    bounds, hopeless = Bounds(max_ttft_ms=130.0), replace(wanted, hopeless=0.06)
    assert Capacity(SPEED, bounds, wanted).num_prefill() > 2
    assert Capacity(SPEED, bounds, hopeless).num_prefill() == 2
    assert Capacity(SPEED, bounds, replace(wanted, hopeless=0.04)).num_prefill() > 2
