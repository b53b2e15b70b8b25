from __future__ import annotations

import random

import pytest

from services.router.answer.ttft_margin import HIGHEST, LOWEST, TtftMargin


@pytest.mark.parametrize("bias", [0.7, 1.0, 1.3])
def test_the_margin_covers_most_of_what_estimates_are_off(bias: float) -> None:
    rng = random.Random(1)
    margin = TtftMargin()
    num_late = 0
    for i in range(4000):
        estimated_ms = rng.uniform(300, 1000)
        actual_ms = estimated_ms * bias * rng.lognormvariate(0, 0.2)
        num_late += i >= 1000 and actual_ms > estimated_ms * margin.factor
        margin.learn(estimated_ms=estimated_ms, actual_ms=actual_ms, bound_ms=1000)
    assert 0.02 < num_late / 3000 < 0.09


def test_estimates_that_were_never_in_danger_say_nothing() -> None:
    margin = TtftMargin()
    for _ in range(100):
        margin.learn(estimated_ms=10, actual_ms=100, bound_ms=1000)
        margin.learn(estimated_ms=0, actual_ms=100, bound_ms=0)
    assert margin.factor == 1


def test_the_margin_is_bounded_both_ways() -> None:
    margin = TtftMargin()
    for _ in range(1000):
        margin.learn(estimated_ms=900, actual_ms=90_000, bound_ms=1000)
    assert margin.factor == HIGHEST
    for _ in range(10_000):
        margin.learn(estimated_ms=900, actual_ms=1, bound_ms=1000)
    assert margin.factor == LOWEST
