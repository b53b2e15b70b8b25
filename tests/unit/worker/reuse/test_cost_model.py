"""Costs are learned from what things took, forgotten with time, and never grow backwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.engine.engine_stats import EngineStats
from shared.identity import WorkerId
from shared.worker.reuse.cost_model import HALF_LIFE_S, TRANSFER_PRIORS, CostModel
from shared.worker.reuse.linear_cost import LinearCost, Rates
from shared.worker.reuse_settings import ReusePolicy

if TYPE_CHECKING:
    from collections.abc import Iterable

PRIOR = Rates(2.0, 0.1)
PEER, OTHER_PEER = WorkerId("peer", "1"), WorkerId("other", "1")
SAMPLES = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 10**9), st.floats(1e-3, 1e6)), max_size=20
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def learned(
    samples: Iterable[tuple[float, float, float]], clock: Clock | None = None
) -> LinearCost:
    cost = LinearCost(PRIOR, prior_weight=0.1, half_life_s=HALF_LIFE_S, clock=clock or Clock())
    for starts, units, took_ms in samples:
        cost.observe(starts, units, took_ms)
    return cost


def prefilled(*steps: tuple[int, int, int]) -> Iterable[EngineStats]:
    """Counters after each of these (steps, tokens, microseconds)."""
    total = [0, 0, 0]
    for step in steps:
        total = [a + b for a, b in zip(total, step, strict=True)]
        names = ("prefill_steps", "prefill_step_tokens", "prefill_step_us")
        yield EngineStats(counters=dict(zip(names, total, strict=True)))


def model_of(samples: Iterable[tuple[int, int, float]] = ()) -> CostModel:
    model = CostModel(tokens_per_step=512, clock=Clock())
    for starts, units, took_ms in samples:
        step = (max(1, starts), units, round(took_ms * 1e3))
        for stats in prefilled(step):
            model.observe_engine(stats)
        model.observe_transfer("shm", PEER, units, took_ms)
    return model


def test_without_samples_the_prior_counts() -> None:
    rates = learned([]).rates()
    assert (rates.per_start_ms, rates.per_unit_ms) == pytest.approx((2.0, 0.1))


def test_rates_are_found_from_samples_of_different_sizes() -> None:
    samples = [(1, size, 5.0 + 0.02 * size) for size in (10, 1000, 50, 4000, 200)] * 4
    rates = learned(samples).rates()
    assert rates.total_ms(1, 2000) == pytest.approx(45.0, rel=0.2)
    assert rates.total_ms(1, 20) == pytest.approx(5.4, rel=0.15)


def test_one_stopped_process_does_not_spoil_the_estimate() -> None:
    good = [(1, 1000, 25.0)] * 9
    with_outlier = learned([*good[:5], (1, 1000, 4000.0), *good[5:]]).rates().total_ms(1, 1000)
    # The mean would be 422.
    assert 25.0 <= with_outlier < 40.0


def test_what_stays_slow_is_believed() -> None:
    cost = learned([(1, 1000, 25.0)] * 10)
    for _ in range(20):
        cost.observe(1, 1000, 1000.0)
    assert cost.rates().total_ms(1, 1000) > 700


def test_without_news_the_estimate_returns_to_the_prior() -> None:
    clock = Clock()
    cost = learned([(1, 1000, 5000.0)] * 10, clock)
    assert cost.rates().total_ms(1, 1000) > 2000
    clock.now_s += 20 * HALF_LIFE_S
    assert cost.rates().total_ms(1, 1000) == pytest.approx(102.0, rel=0.01)


def test_what_took_no_time_teaches_nothing() -> None:
    assert learned([(1, 10, 0.0), (0, 0, 5.0), (1, 10, -1.0)]).rates() == learned([]).rates()


@given(SAMPLES)
def test_rates_are_never_negative(samples: list[tuple[int, int, float]]) -> None:
    rates = learned(samples).rates()
    assert rates.per_start_ms >= 0
    assert rates.per_unit_ms >= 0
    assert rates.total_ms(1, 1) > 0


@given(SAMPLES, st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 2**40))
def test_more_tokens_never_speak_against_fetching(
    samples: list[tuple[int, int, float]], tokens: int, more: int, num_bytes: int
) -> None:
    model = model_of(samples)
    few, many = (
        model.decide(
            ReusePolicy.AUTO, connector="shm", worker=PEER, num_tokens=n, num_bytes=num_bytes
        )
        for n in (tokens, tokens + more)
    )
    assert few.compute_ms <= many.compute_ms
    assert few.fetch <= many.fetch


@given(SAMPLES, st.integers(0, 10**6), st.integers(0, 2**40), st.integers(0, 2**40))
def test_more_bytes_never_speak_for_fetching(
    samples: list[tuple[int, int, float]], tokens: int, num_bytes: int, more: int
) -> None:
    model = model_of(samples)
    few, many = (
        model.decide(ReusePolicy.AUTO, connector="shm", worker=PEER, num_tokens=tokens, num_bytes=n)
        for n in (num_bytes, num_bytes + more)
    )
    assert few.move_ms <= many.move_ms
    assert few.fetch >= many.fetch


def test_computing_is_learned_from_the_engines_own_steps() -> None:
    model = CostModel(tokens_per_step=512, clock=Clock())
    steps = [(1, 512, 110_000), (2, 600, 140_000), (1, 64, 22_000), (4, 2048, 440_000)] * 3
    for stats in prefilled(*steps):
        model.observe_engine(stats)
    # 10 ms a step and 0.195 ms a token.
    assert model.compute_ms(2048) == pytest.approx(440, rel=0.1)


def test_a_slow_peer_is_known_and_others_are_not_blamed_for_it() -> None:
    model = CostModel(tokens_per_step=512, clock=Clock())
    for _ in range(10):
        model.observe_transfer("shm", OTHER_PEER, 2**20, 5.0)
    for _ in range(3):
        model.observe_transfer("shm", PEER, 2**20, 500.0)
    assert model.move_ms("shm", PEER, 2**20) > 5 * model.move_ms("shm", OTHER_PEER, 2**20)


def test_a_new_peer_is_taken_for_one_like_the_others() -> None:
    model = CostModel(tokens_per_step=512, clock=Clock())
    for _ in range(10):
        model.observe_transfer("shm", PEER, 2**20, 80.0)
    assert model.move_ms("shm", OTHER_PEER, 2**20) == pytest.approx(80.0, rel=0.3)
    prior_ms = TRANSFER_PRIORS["zmq"].total_ms(1, 2**20)
    assert model.move_ms("zmq", OTHER_PEER, 2**20) == pytest.approx(prior_ms)


@pytest.mark.parametrize(
    ("policy", "fetch"), [(ReusePolicy.ALWAYS, True), (ReusePolicy.NEVER, False)]
)
def test_a_fixed_policy_asks_nobody(policy: ReusePolicy, *, fetch: bool) -> None:
    for num_tokens, num_bytes in ((1, 2**40), (10**6, 1)):
        decision = model_of().decide(
            policy, connector="shm", worker=PEER, num_tokens=num_tokens, num_bytes=num_bytes
        )
        assert decision.fetch is fetch
