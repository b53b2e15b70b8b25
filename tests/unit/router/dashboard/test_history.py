"""The last quarter of an hour: what a step says, and that its size is bounded."""

from __future__ import annotations

import itertools
import random

import pytest

from services.router.dashboard.history import MAX_VALUES, NUM_POINTS, STEP_S, Gauges, History
from services.router.dashboard.sample import Sample, percentile
from tests.fakes.router.ended_requests import refused, served


class Clocks:
    """Both clocks, moved by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clocks:
    return Clocks()


@pytest.fixture
def history(clock: Clocks) -> History:
    return History(clock=clock, wall_clock=clock)


def test_a_step_says_what_happened_in_it(history: History, clock: Clocks) -> None:
    for ttft_s in (0.01, 0.02, 0.03, 0.5):
        history.first_token(ttft_s)
    history.ended(served(num_prompt_tokens=30, num_cached_tokens=10, num_tokens=10))
    history.ended(refused())
    clock.now_s += 2
    history.look(Gauges(num_running=3, num_queued=2, num_tokens=100, num_gaps=4, gaps_s=0.2))
    clock.now_s += 2
    gauges = Gauges(
        num_running=1, num_tokens=200, num_gaps=10, gaps_s=0.5, num_replays=1, kv_used={"d": 0.25}
    )
    history.look(gauges)
    [point] = history.points()
    assert point.at_s == 1000
    assert (point.ttft_p50_ms, point.ttft_p99_ms) == (20.0, 500.0)
    assert point.itl_mean_ms == 50.0
    assert point.itl_p99_ms == 10.0  # 90 ms over the 9 gaps of 10 tokens
    assert (point.requests_per_s, point.tokens_per_s, point.prompt_tokens_per_s) == (0.5, 50.0, 7.5)
    assert point.hit_rate == pytest.approx(1 / 3, abs=1e-4)
    # The most of the step, not the last.
    assert (point.num_running, point.num_queued) == (3, 2)
    assert (point.num_failed, point.num_replays) == (1, 1)
    assert point.kv_used == {"d": 0.25}


def test_a_quiet_step_has_rates_of_zero_and_no_times(history: History, clock: Clocks) -> None:
    clock.now_s += 1
    history.look(Gauges())
    [point] = history.points()
    assert (point.ttft_p50_ms, point.ttft_p99_ms, point.itl_mean_ms) == (None, None, None)
    assert (point.hit_rate, point.requests_per_s, point.tokens_per_s) == (None, 0.0, 0.0)


def test_what_is_told_counts_in_its_own_step_alone(history: History, clock: Clocks) -> None:
    for _ in range(STEP_S):
        clock.now_s += 1
        history.look(Gauges(num_tokens=50))
    history.first_token(0.1)
    clock.now_s += 1
    history.look(Gauges(num_tokens=50))
    first, second = history.points()
    assert (first.tokens_per_s, first.ttft_p50_ms) == (10.0, None)
    assert (second.at_s, second.tokens_per_s, second.ttft_p50_ms) == (1005, 0.0, 100.0)
    assert history.newest() == [first, second]


def test_it_never_grows(history: History, clock: Clocks) -> None:
    for second in range(STEP_S * (NUM_POINTS + 50)):
        for _ in range(20):
            history.first_token(0.1)
            history.ended(served())
        clock.now_s += 1
        history.look(Gauges(num_tokens=second))
    points = history.points()
    assert len(points) <= NUM_POINTS
    assert [b.at_s - a.at_s for a, b in itertools.pairwise(points)] == [STEP_S] * (len(points) - 1)
    assert len(history.newest()) <= 2


def test_the_last_minute_forgets_what_was_before(history: History, clock: Clocks) -> None:
    history.first_token(9.0)
    history.ended(refused())
    for second in range(70):
        clock.now_s += 1
        history.look(Gauges(num_tokens=10 * second))
    history.first_token(0.05)
    history.ended(served())
    minute = history.minute()
    assert (minute.ttft_p50_ms, minute.ttft_p99_ms, minute.num_failed) == (50.0, 50.0, 0)
    assert minute.tokens_per_s == pytest.approx(10, rel=0.1)
    assert minute.requests_per_s == pytest.approx(1 / 60, abs=0.01)


def test_a_sample_keeps_each_value_with_the_same_chance() -> None:
    rng = random.Random(7)
    kept = [0, 0]
    for _ in range(300):
        sample = Sample(10, rng)
        for value in range(40):
            sample.add(value)
        assert len(sample.values) == 10
        for value in sample.values:
            kept[value >= 20] += 1
    # Half of 3000 each; six standard deviations are about 165.
    assert abs(kept[0] - 1500) < 165


def test_more_values_than_are_kept_have_about_the_same_percentiles(history: History) -> None:
    for value in range(20 * MAX_VALUES):
        history.first_token(value / 1000)
    ttft_ms = history.minute().ttft_p50_ms
    assert ttft_ms is not None
    assert 0.35 < ttft_ms / (20 * MAX_VALUES) < 0.65


def test_percentiles_are_values_that_were_there() -> None:
    assert percentile([], 0.5) is None
    assert percentile([3.0], 0.99) == 3.0
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.0
    assert percentile(range(1, 101), 0.99) == 99
