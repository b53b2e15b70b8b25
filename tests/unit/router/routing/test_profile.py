from __future__ import annotations

import random

import pytest

from services.router.routing.base import Route
from services.router.routing.learn import learn_prefill
from services.router.usage import Timings, Usage
from services.router.workers.timing.fit import RobustFit
from services.router.workers.timing.profile import PREFILL_PRIOR, STALE_S, WorkerProfile
from shared.identity import Role
from tests.unit.router.routing.workers import endpoint


def _truth(num_tokens: int, num_held: int) -> float:
    computed = num_tokens - num_held
    return 20 + 0.2 * computed + 5e-6 * computed * (num_tokens + num_held) / 2


def _taught(profile: WorkerProfile, count: int, *, outliers: float = 0.0, seed: int = 1) -> None:
    rng = random.Random(seed)
    for _ in range(count):
        num_tokens = int(10 ** rng.uniform(1, 5))
        num_held = rng.choice([0, 0, num_tokens // 2])
        ms = _truth(num_tokens, num_held) * rng.uniform(0.95, 1.05)
        if rng.random() < outliers:
            ms *= rng.choice([10, 30])
        profile.observe_prefill(num_tokens, num_held, ms)


@pytest.mark.parametrize("outliers", [0.0, 0.1])
def test_prefill_is_learned_despite_outliers(outliers: float) -> None:
    profile = WorkerProfile()
    _taught(profile, 300, outliers=outliers)
    for shape in ((100, 0), (2_000, 0), (30_000, 0), (100_000, 0), (60_000, 50_000)):
        assert profile.prefill_ms(*shape) == pytest.approx(_truth(*shape), rel=0.15)


def test_it_follows_a_worker_that_becomes_slower() -> None:
    profile = WorkerProfile()
    for factor in (1, 3):
        for i in range(400):
            num_tokens = 100 * (1 + i % 50)
            profile.observe_prefill(num_tokens, 0, factor * _truth(num_tokens, 0))
    assert profile.prefill_ms(2500, 0) == pytest.approx(3 * _truth(2500, 0), rel=0.1)


def test_coefficients_are_never_negative() -> None:
    profile = WorkerProfile()
    for i in range(100):
        num_tokens = 1000 * (1 + i % 20)
        # Grows more slowly than anything that the model can say.
        profile.observe_prefill(num_tokens, 0, 100 * num_tokens**0.3)
    times = [profile.prefill_ms(n, 0) for n in range(0, 200_000, 1000)]
    assert times == sorted(times)
    assert times[0] >= 0


def test_without_measurements_the_prior_counts_and_one_moves_it() -> None:
    profile = WorkerProfile()
    each, per_1000, per_million = PREFILL_PRIOR
    assert profile.prefill_ms(1000, 0) == pytest.approx(each + per_1000 + per_million / 2)
    profile.observe_prefill(1000, 0, 200.0)
    assert 100 < profile.prefill_ms(1000, 0) < 210


def test_a_new_worker_is_believed_to_be_like_the_others() -> None:
    fleet = WorkerProfile()
    first, second = WorkerProfile(fleet), WorkerProfile(fleet)
    _taught(first, 200)
    assert second.prefill_ms(5000, 0) == pytest.approx(_truth(5000, 0), rel=0.1)
    for _ in range(50):
        second.observe_prefill(5000, 0, 4 * _truth(5000, 0))
    assert second.prefill_ms(5000, 0) == pytest.approx(4 * _truth(5000, 0), rel=0.1)
    assert first.prefill_ms(5000, 0) == pytest.approx(_truth(5000, 0), rel=0.1)


def test_a_few_slow_answers_hardly_tell_a_worker_from_its_twin() -> None:
    fleet = WorkerProfile()
    first, second = WorkerProfile(fleet), WorkerProfile(fleet)
    _taught(second, 50)
    for _ in range(2):
        first.observe_prefill(2000, 0, 3 * _truth(2000, 0))
    assert first.prefill_ms(2000, 0) < 2 * second.prefill_ms(2000, 0)
    assert first.prefill_ms(2000, 1900) < second.prefill_ms(2000, 0)


def test_a_worker_that_was_slow_once_is_tried_again() -> None:
    now_s = 0.0
    fleet = WorkerProfile()
    first, second = (WorkerProfile(fleet, clock=lambda: now_s) for _ in range(2))
    for _ in range(20):
        second.observe_decode(4, 500, 10.0)
    for _ in range(20):
        first.observe_decode(4, 500, 200.0)
    # It looks worse than its twin, so it gets nothing, and nothing shows that it is as fast now.
    for _ in range(200):
        second.observe_decode(4, 500, 10.0)
    now_s += STALE_S - 0.1
    assert first.itl_ms(4, 500) > 2 * second.itl_ms(4, 500)
    second.observe_decode(4, 500, 10.0)
    now_s += 0.2
    assert first.itl_ms(4, 500) == pytest.approx(second.itl_ms(4, 500), rel=0.1)
    for _ in range(2):
        first.observe_decode(4, 500, 10.0)
    assert first.itl_ms(4, 500) < 2 * second.itl_ms(4, 500)


def test_decode_and_transfer_are_learned_too() -> None:
    profile, rng = WorkerProfile(), random.Random(2)
    for _ in range(300):
        batch = rng.randint(1, 64)
        profile.observe_decode(batch, batch * 500, 8 + 0.4 * batch + 0.1 * batch)
        tokens = rng.randint(10, 10_000)
        profile.observe_transfer(tokens, tokens * 1000, 2 + tokens * 1000 / 2e6)
    assert profile.itl_ms(32, 16_000) == pytest.approx(24, rel=0.05)
    assert profile.bytes_per_token == 1000
    assert profile.transfer_ms(4000) == pytest.approx(4, rel=0.05)
    assert profile.transfer_ms(0) == 0


def test_measurements_that_cannot_be_are_ignored() -> None:
    fit = RobustFit(lambda: (1.0, 1.0))
    for y in (0.0, -3.0, float("nan")):
        fit.observe((1.0, 1.0), y)
    assert (fit.num_measurements, fit.coefficients) == (0, (1.0, 1.0))


def test_an_answer_teaches_the_worker_that_computed_its_prompt() -> None:
    decode, p, q = endpoint("d", Role.DECODE), endpoint("p"), endpoint("q")
    route = Route(decode, (p, q))
    usage = Usage(prompt_tokens=1000, transferred_tokens=1000, transferred_hit_tokens=600)
    timings = Timings(
        prefill_ms=70.0, prefill_worker="q", transfer_bytes=2_000_000, transfer_ms=9.0
    )
    learn_prefill(route, usage, timings)
    counts = [e.profile.num_measurements for e in (decode, p, q)]
    assert counts == [0, 0, 1]
    assert q.profile.bytes_per_token == decode.profile.bytes_per_token == 2000
    # It overlapped with computing: its time says nothing.
    learn_prefill(route, Usage(prompt_tokens=50, transferred_tokens=50), timings)
    assert q.profile.bytes_per_token == 2000
    # Nobody says how much the prefill worker held.
    hidden = Usage(prompt_tokens=100, transferred_tokens=50, local_hit_tokens=50)
    learn_prefill(route, hidden, timings)
    assert q.profile.num_measurements == 2
    learn_prefill(route, Usage(prompt_tokens=100, local_hit_tokens=50), timings)
    assert decode.profile.num_measurements == 1
