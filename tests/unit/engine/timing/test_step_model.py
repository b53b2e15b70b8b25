"""The step model: recovers what steps cost, keeps what it is not shown, and is turned round."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.engine.timing.step_model import PRIOR, StepCost, StepModel
from shared.engine.timing.step_work import StepWork
from tests.accounting.effort import examples

#: A GPU, a few cores with a small model, many sequences, a large model.
MACHINES = [
    StepCost(5.0, 0.05, 2e-5, 0.01, 2e-7),
    StepCost(0.4, 0.05, 1e-5, 0.03, 5e-7),
    StepCost(2.0, 1.0, 5e-4, 0.5, 1e-5),
    StepCost(20.0, 0.0, 1e-3, 3.0, 1e-4),
]
costs = st.builds(
    StepCost,
    st.floats(0, 50),
    st.floats(0, 2),
    st.floats(0, 1e-2),
    st.floats(0, 5),
    st.floats(0, 1e-3),
)
works = st.builds(
    StepWork, st.integers(0, 64), st.integers(0, 99_999), st.integers(0, 2048), st.floats(0, 1e7)
)


def plain_step(rng: random.Random) -> StepWork:
    num = rng.randrange(1, 40)
    return StepWork(num, num * rng.randrange(50, 1500))


def any_step(rng: random.Random) -> StepWork:
    work = plain_step(rng)
    if rng.random() < 0.2:
        work.add_prompt(rng.choice([16, 64, 200, 512]), rng.choice([0, 0, 512, 4000]))
    return work


def show(model: StepModel, cost: StepCost, num: int, rng: random.Random) -> None:
    """Steps with noise, of which one in thirty is held up by something else."""
    for _ in range(num):
        work = any_step(rng)
        delay = 6.0 if rng.random() < 0.03 else rng.uniform(0.9, 1.1)
        model.observe(work, cost.step_ms(work) * delay)


@pytest.mark.parametrize("cost", MACHINES)
@pytest.mark.parametrize("seed", range(2))
def test_it_learns_what_steps_cost_and_keeps_what_it_no_longer_sees(
    cost: StepCost, seed: int
) -> None:
    rng = random.Random(seed)
    model = StepModel()
    show(model, cost, 300, rng)
    for _ in range(60):
        work = any_step(rng)
        assert model.cost.step_ms(work) == pytest.approx(cost.step_ms(work), rel=0.1)
    assert model.cost.per_step == pytest.approx(cost.per_step, rel=0.1)
    assert model.cost.per_prompt == pytest.approx(cost.per_prompt, rel=0.15)
    for _ in range(1500):
        work = plain_step(rng)
        model.observe(work, cost.step_ms(work) * rng.uniform(0.9, 1.1))
    assert model.cost.per_prompt == pytest.approx(cost.per_prompt, rel=0.15)


def test_it_follows_a_machine_that_changes() -> None:
    rng, model = random.Random(5), StepModel()
    show(model, MACHINES[0], 200, rng)
    # Half of the cores went away.
    slower = StepCost(*(2 * ms for ms in MACHINES[0]))
    show(model, slower, 300, rng)
    for _ in range(30):
        work = any_step(rng)
        assert model.cost.step_ms(work) == pytest.approx(slower.step_ms(work), rel=0.15)


def test_one_stopped_process_changes_little() -> None:
    rng, model = random.Random(6), StepModel()
    show(model, MACHINES[1], 100, rng)
    work = StepWork(10, 5000)
    before = model.cost.step_ms(work)
    model.observe(work, 1e5)
    assert model.cost.step_ms(work) < 1.5 * before


@settings(max_examples=examples(30, 1000))
@given(st.lists(st.tuples(works, st.floats(-1, 1e5)), max_size=60))
def test_no_cost_is_negative_whatever_it_is_shown(steps: list[tuple[StepWork, float]]) -> None:
    model, twin = StepModel(), StepModel()
    for work, took_ms in steps:
        model.observe(work, took_ms)
        assert all(ms >= 0 for ms in model.cost)
        assert model.cost.step_ms(work) > 0
        twin.observe(work, took_ms)
    assert model.cost == twin.cost


@given(costs, works, st.integers(1, 500), st.integers(0, 8000))
def test_more_work_never_takes_less_time(
    cost: StepCost, work: StepWork, num_tokens: int, context: int
) -> None:
    before = cost.step_ms(work)
    work.add_prompt(num_tokens, context)
    assert cost.step_ms(work) >= before
    assert cost.more_ms(num_tokens + 1, context) >= cost.more_ms(num_tokens, context)
    assert cost.more_ms(num_tokens, context + 1) >= cost.more_ms(num_tokens, context)


@given(costs, st.floats(-5, 500), st.integers(0, 30_000), st.integers(0, 4096))
def test_the_largest_chunk_that_fits(cost: StepCost, ms: float, context: int, most: int) -> None:
    num = cost.num_tokens_in(ms, context, most)
    assert 0 <= num <= most
    assert num == 0 or cost.more_ms(num, context) <= ms
    assert num == most or cost.more_ms(num + 1, context) > ms


def test_few_of_many_plain_steps_are_wanted_and_all_with_prompts() -> None:
    model = StepModel()
    for _ in range(40):
        assert model.wants(has_prompts=False)
        model.observe(StepWork(1, 10), 1.0)
        if model.num_steps == 32:
            break
    assert sum(model.wants(has_prompts=False) for _ in range(40)) == 10
    assert model.wants(has_prompts=True)
    assert model.cost != PRIOR
