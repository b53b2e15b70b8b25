"""Arrivals: the offered load is the one asked for, whatever its shape."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load.settings import RampUp
from benchmarks.load.workload.arrivals import Ramp, rate_changes, schedule

rates = st.floats(0.01, 10_000)
shapes = st.floats(0.05, 50) | st.just(math.inf)
seeds = st.integers(0, 2**32)


def times(
    num: int, rate: float, burstiness: float, seed: int = 0, ramp: Ramp | None = None
) -> np.ndarray:
    rng = np.random.default_rng(seed)
    drawn = schedule(num, request_rate=rate, burstiness=burstiness, rng=rng, ramp=ramp)
    return np.array([arrival.at_s for arrival in drawn])


@given(num=st.integers(1, 300), rate=rates, burstiness=shapes, seed=seeds)
def test_the_last_request_is_sent_at_n_over_rate(
    num: int, rate: float, burstiness: float, seed: int
) -> None:
    at_s = times(num, rate, burstiness, seed)
    assert at_s[-1] == pytest.approx(num / rate, rel=1e-9)


@given(num=st.integers(2, 300), rate=rates, burstiness=shapes, seed=seeds)
def test_time_never_runs_back(num: int, rate: float, burstiness: float, seed: int) -> None:
    at_s = times(num, rate, burstiness, seed)
    assert at_s[0] >= 0
    assert (np.diff(at_s) >= 0).all()


@given(burstiness=st.floats(0.3, 20), rate=st.floats(0.1, 1000), seed=st.integers(0, 1000))
def test_gaps_have_the_mean_and_spread_of_a_gamma(
    burstiness: float, rate: float, seed: int
) -> None:
    gaps = np.diff(times(20_000, rate, burstiness, seed), prepend=0.0)
    assert gaps.mean() == pytest.approx(1 / rate, rel=1e-6)
    # The squared coefficient of variation of Gamma(b) is 1/b, at any scale.
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(1 / burstiness, rel=0.2)


def test_burstiness_one_is_poisson() -> None:
    gaps = np.sort(np.diff(times(20_000, 5.0, 1.0), prepend=0.0))
    expected = 1 - np.exp(-5.0 * gaps)
    seen = np.arange(1, len(gaps) + 1) / len(gaps)
    # Kolmogorov-Smirnov, at a level of about one in a thousand.
    assert np.abs(expected - seen).max() < 1.95 / math.sqrt(len(gaps))


@given(num=st.integers(1, 200), rate=rates)
def test_infinite_burstiness_is_a_metronome(num: int, rate: float) -> None:
    gaps = np.diff(times(num, rate, math.inf), prepend=0.0)
    assert gaps == pytest.approx(np.full(num, 1 / rate), rel=1e-6)


@given(num=st.integers(1, 100), burstiness=shapes)
def test_an_infinite_rate_sends_all_at_once(num: int, burstiness: float) -> None:
    assert not times(num, math.inf, burstiness).any()


def test_the_seed_decides() -> None:
    assert (times(50, 3.0, 0.5, seed=4) == times(50, 3.0, 0.5, seed=4)).all()
    assert (times(50, 3.0, 0.5, seed=4) != times(50, 3.0, 0.5, seed=5)).any()


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [(RampUp.LINEAR, [1.0, 4.75, 8.5, 12.25, 16.0]), (RampUp.EXPONENTIAL, [1, 2, 4, 8, 16])],
)
def test_a_ramp_goes_from_start_to_end(strategy: RampUp, expected: list[float]) -> None:
    ramp = Ramp(strategy=strategy, start_rps=1, end_rps=16)
    assert [ramp.rate(i, 5) for i in range(5)] == pytest.approx(expected)
    # Not scaled: each gap belongs to the rate of its own request.
    gaps = np.diff(times(5, math.inf, math.inf, ramp=ramp), prepend=0.0)
    assert gaps == pytest.approx([1 / rate for rate in expected])


def test_every_whole_rate_of_a_ramp_is_noted_once() -> None:
    ramp = Ramp(strategy=RampUp.EXPONENTIAL, start_rps=1, end_rps=8)
    rng = np.random.default_rng(0)
    arrivals = schedule(4, request_rate=math.inf, burstiness=math.inf, rng=rng, ramp=ramp)
    changes = rate_changes(arrivals, ramp, datetime(2026, 1, 1, tzinfo=UTC))
    assert [change["rps"] for change in changes] == list(range(1, 9))
    assert changes[0]["timestamp"] == "2026-01-01T00:00:00+00:00"
    assert changes[1]["timestamp"] == "2026-01-01T00:00:01.500000+00:00"
