"""What is counted at the door, and what is expected of it."""

from __future__ import annotations

import pytest

from services.router.planning.forecast import LASTING_S, Forecast
from services.router.planning.meter import OUTPUT_PRIOR, DemandMeter
from tests.unit.router.planning.scenes import SPEED
from tests.unit.router.routing.workers import Clock


def test_a_rising_rate_is_followed_and_does_not_rise_for_ever() -> None:
    forecast = Forecast()
    for second in range(0, 1200, 5):
        forecast.note(float(second), float(second))
    # Without the trend in what is expected, the level lags behind.
    assert forecast.level == pytest.approx(1195, abs=3)
    assert forecast.trend == pytest.approx(1.0, rel=0.01)
    assert forecast.after(30.0) == pytest.approx(1225, abs=6)
    assert forecast.after(1e6) == pytest.approx(forecast.level + forecast.trend * LASTING_S)
    falls = Forecast()
    for second in range(0, 60, 5):
        falls.note(60.0 - second, float(second))
    assert falls.after(1e6) == 0.0


def test_a_meter_counts_each_interval_by_itself_and_means_over_many() -> None:
    clock = Clock()
    meter = DemandMeter(max_ttft_ms=25.0, clock=clock)
    assert meter.take().variation == 1.0
    clock.now_s += 2.0
    for tokens in (100, 300):
        meter.arrived(tokens)
    for prompt_ms in (10.0, 30.0):
        meter.routed(50, prompt_ms)
    meter.ended(10)
    seen = meter.take()
    assert (seen.requests_per_s, seen.prompt_tokens, seen.held_tokens) == (1.0, 200.0, 50.0)
    # One of two takes longer by itself than it may. The mean square is 500, that of the mean 400.
    assert (seen.prompt_ms, seen.hopeless, seen.variation) == (20.0, 0.5, pytest.approx(0.25))
    # The first answers to end are the short ones.
    assert seen.output_tokens == pytest.approx((OUTPUT_PRIOR + 10) / 2)
    clock.now_s += 2.0
    quiet = meter.take()
    assert (quiet.requests_per_s, quiet.prompt_tokens) == (0.0, pytest.approx(200.0))


def test_what_is_held_is_read_by_each_token_that_is_computed() -> None:
    # 3000 tokens, each of which reads on average 2500 before it.
    assert SPEED.prefill_ms(4000, 1000) == pytest.approx(5 + 150 + 7.5)
