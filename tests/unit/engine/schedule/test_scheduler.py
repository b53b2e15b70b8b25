"""The scheduler's promises: budget, order, no starvation, progress when everything is too much."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.engine.sequence.events import Admitted, NewTokens
from shared.engine.settings.choices import SchedulingPolicy
from tests.fakes.engine.engines import (
    Run,
    StepMode,
    drain,
    expected_tokens,
    generate,
    make_engine,
    make_request,
)
from tests.fakes.engine.model import FakeLoadedModel

pytestmark = pytest.mark.usefixtures("step_mode")

PRIORITY = SchedulingPolicy.PRIORITY


def num_preemptions(engine: Any) -> int:
    return engine.stats().counters["num_preemptions"]


def admission_order(engine: Any) -> list[str]:
    order = []
    while engine.has_work():
        order += [e.request_id for e in engine.step() if isinstance(e, Admitted)]
    return order


@given(
    prompts=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    max_num_seqs=st.integers(1, 6),
    budget=st.integers(6, 40),
    num_blocks=st.integers(10, 20),
    threshold=st.sampled_from([0, 3]),
    policy=st.sampled_from(SchedulingPolicy),
    max_tokens=st.integers(1, 9),
)
def test_whatever_the_load_the_answers_are_right(
    prompts: list[int],
    max_num_seqs: int,
    budget: int,
    num_blocks: int,
    threshold: int,
    policy: SchedulingPolicy,
    max_tokens: int,
) -> None:
    loaded = FakeLoadedModel()
    engine = make_engine(
        loaded,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        num_blocks=num_blocks,
        long_prefill_token_threshold=threshold,
        scheduling_policy=policy,
    )
    texts = [[(i * 7 + j) % 90 for j in range(n)] for i, n in enumerate(prompts)]
    run = generate(
        engine,
        *(
            make_request(str(i), text, max_tokens=max_tokens, priority=i % 3)
            for i, text in enumerate(texts)
        ),
    )
    for i, text in enumerate(texts):
        assert run.tokens(str(i)) == expected_tokens(text, max_tokens)
    assert max(loaded.model.num_tokens_per_step) <= budget
    assert engine.stats().num_free_blocks == num_blocks


def test_four_times_more_than_fits_is_worked_off() -> None:
    engine = make_engine(num_blocks=20, max_num_seqs=32, max_num_batched_tokens=64)
    prompts = [[(i + j) % 90 for j in range(12)] for i in range(16)]  # 16 * 5 = 80 blocks
    run = generate(engine, *(make_request(str(i), p, max_tokens=8) for i, p in enumerate(prompts)))
    assert [run.tokens(str(i)) for i in range(16)] == [expected_tokens(p, 8) for p in prompts]


def test_decoding_goes_on_while_a_long_prompt_is_read(step_mode: StepMode) -> None:
    engine = make_engine(max_num_batched_tokens=8, max_num_seqs=4)
    engine.prefer(None)  # a worker limits prompts, by what steps take
    lag = 0 if step_mode is StepMode.PARTED else step_mode.lag
    engine.add(make_request("short", range(4), max_tokens=20))
    for _ in range(1 + lag):
        engine.step()
    engine.add(make_request("long", range(40, 90), max_tokens=1))
    run = Run()
    drain(engine, run, until=lambda run: bool(run.new_tokens("long")))
    # 50 tokens by 7 in a step
    assert run.num_steps == 8 + lag
    # With three stages, a step in three is one of the decoding sequence.
    each = 3 if step_mode is StepMode.STAGED else 1
    assert len(run.tokens("short")) == run.num_steps // each


def test_a_long_prompt_leaves_room_for_others_only_if_there_are_any() -> None:
    loaded = FakeLoadedModel()
    engine = make_engine(loaded, long_prefill_token_threshold=10)
    loaded.model.num_tokens_per_step.clear()
    generate(engine, make_request("alone", range(50), max_tokens=1))
    assert loaded.model.num_tokens_per_step == [50]
    loaded.model.num_tokens_per_step.clear()
    generate(
        engine,
        make_request("a", range(10, 60), max_tokens=1),
        make_request("b", range(20, 70), max_tokens=1),
    )
    assert loaded.model.num_tokens_per_step[:4] == [20, 20, 20, 20]


def test_the_head_of_the_queue_is_not_overtaken() -> None:
    engine = make_engine(num_blocks=12)
    engine.add(make_request("first", range(24), max_tokens=8))
    engine.add(make_request("large", range(30, 70), max_tokens=2))
    engine.add(make_request("small", [1], max_tokens=2))
    assert admission_order(engine) == ["first", "large", "small"]


def test_nobody_is_admitted_who_would_have_to_give_way_at_once() -> None:
    engine = make_engine(num_blocks=9)
    engine.add(make_request("a", range(16), max_tokens=8))  # 4 blocks now, 6 in the end
    engine.add(make_request("b", range(40, 60), max_tokens=2))  # 5 blocks
    engine.step()
    assert engine.stats().num_running == 1
    drain(engine)
    assert num_preemptions(engine) == 0


def test_first_come_first_served_preempts_the_last() -> None:
    engine = make_engine(num_blocks=10)
    names = ["a", "b", "c"]
    for i, name in enumerate(names):
        engine.add(make_request(name, range(i, i + 7), max_tokens=17))
    run = Run()
    drain(engine, run, until=lambda run: num_preemptions(engine) > 0)
    assert num_preemptions(engine) == 1
    assert [s.request_id for s in engine._scheduler.running] == ["a", "b"]
    drain(engine, run)
    assert len(run.admitted("c")) == 2
    for i, name in enumerate(names):
        assert run.tokens(name) == expected_tokens(range(i, i + 7), 17)


def test_priority_admits_and_preempts_by_rank() -> None:
    engine = make_engine(num_blocks=10, scheduling_policy=PRIORITY, max_num_seqs=2)
    for name, priority in (("late", 5), ("urgent", -1), ("normal", 0), ("normal2", 0)):
        engine.add(make_request(name, range(10 + priority, 17 + priority), priority=priority))
    assert admission_order(engine) == ["urgent", "normal", "normal2", "late"]
    engine = make_engine(num_blocks=10, scheduling_policy=PRIORITY)
    run = Run()
    prompts = {"victim": range(7), "b": range(1, 8), "c": range(2, 9)}
    for name, prompt in prompts.items():
        rank = 9 if name == "victim" else 1
        engine.add(make_request(name, prompt, max_tokens=17, priority=rank))
        drain(engine, run, until=lambda run, name=name: bool(run.admitted(name)))
    # The victim is first in line, so the step that preempts it had planned it already.
    drain(engine, run, until=lambda run: num_preemptions(engine) > 0)
    assert [s.request_id for s in engine._scheduler.running] == ["b", "c"]
    drain(engine, run)
    for name, prompt in prompts.items():
        assert run.tokens(name) == expected_tokens(prompt, 17)


def test_who_was_preempted_comes_back_before_newer_ones(step_mode: StepMode) -> None:
    engine = make_engine(num_blocks=10)
    for i, name in enumerate("abc"):
        engine.add(make_request(name, range(i, i + 7), max_tokens=17))
    drain(engine, until=lambda run: num_preemptions(engine) > 0)
    engine.add(make_request("d", [1], max_tokens=1))
    # b gave way to a later on; with stages a has ended before.
    others = ["c"] if step_mode is StepMode.STAGED else ["b", "c"]
    assert admission_order(engine) == [*others, "d"]


def test_nobody_is_admitted_in_a_step_that_preempted() -> None:
    engine = make_engine(num_blocks=13, max_num_seqs=3, scheduling_policy=PRIORITY)
    for i, name in enumerate("abc"):
        engine.add(make_request(name, range(i, i + 7), max_tokens=17, priority=1))
    engine.step()
    engine.add(make_request("urgent", [1], max_tokens=1, priority=0))
    events: list[Any] = []
    while not num_preemptions(engine):
        events = engine.step()
    assert not [event for event in events if isinstance(event, Admitted)]
    assert admission_order(engine)[0] == "urgent"


def test_blocks_that_a_peer_reads_are_not_taken_away() -> None:
    engine = make_engine(num_blocks=12, long_prefill_token_threshold=1)
    run = Run()
    engine.add(make_request("grows", range(60, 64), max_tokens=30))
    engine.add(make_request("held", range(28), hold_blocks=True))
    drain(engine, run)
    assert num_preemptions(engine) == 1
    assert len(run.admitted("held")) == 1
    assert run.tokens("held") == expected_tokens(range(28), 1)
    assert len(run.tokens("grows")) < 30
    engine.release("held")
    assert drain(engine, run).tokens("grows") == expected_tokens(range(60, 64), 30)


def test_preemption_keeps_what_was_said() -> None:
    engine = make_engine(num_blocks=10)
    run = generate(
        engine, *(make_request(str(i), range(i, i + 9), max_tokens=20) for i in range(4))
    )
    assert num_preemptions(engine) > 0
    for i in range(4):
        assert run.tokens(str(i)) == expected_tokens(range(i, i + 9), 20)
        assert all(len(e.token_ids) == 1 for e in run.new_tokens(str(i)))


def test_without_chunking_a_prompt_is_read_in_one_step(step_mode: StepMode) -> None:
    loaded = FakeLoadedModel()
    engine = make_engine(
        loaded,
        enable_chunked_prefill=False,
        max_model_len=40,
        max_num_seqs=4,
        max_num_batched_tokens=44,
    )
    for i in range(4):
        engine.add(make_request(str(i), range(i, i + 30), max_tokens=4))
    admitted, sampled = [], []
    while engine.has_work():
        step = engine.step()
        admitted.append({e.request_id for e in step if isinstance(e, Admitted)})
        sampled.append({e.request_id for e in step if isinstance(e, NewTokens)})
    lag = step_mode.lag
    later = [*sampled[lag:], *[set()] * lag]
    assert all(names <= those for names, those in zip(admitted, later, strict=True))
    assert max(loaded.model.num_tokens_per_step) <= 44


@pytest.mark.parametrize("policy", SchedulingPolicy)
def test_everybody_gets_a_turn(policy: SchedulingPolicy, step_mode: StepMode) -> None:
    """A sequence that holds blocks gets a token in every step in which it is not preempted."""
    engine = make_engine(num_blocks=12, scheduling_policy=policy, max_num_batched_tokens=8)
    for i in range(8):
        engine.add(make_request(str(i), range(i, i + 6), max_tokens=12))
    waited: dict[str, int] = {}
    # With stages, a step of one sequence is collected when those behind it have been launched. A
    # prompt waits for the parts of others.
    longest = 2 + {StepMode.STAGED: step_mode.lag, StepMode.PARTED: 2 * step_mode.lag}.get(
        step_mode, 0
    )
    while engine.has_work():
        running = [seq.request_id for seq in engine._scheduler.running]
        before = {seq.request_id: seq.num_tokens for seq in engine._scheduler.running}
        engine.step()
        for seq in engine._scheduler.running:
            progressed = seq.num_tokens > before.get(seq.request_id, 0)
            name = seq.request_id
            waited[name] = 0 if progressed or name not in running else waited.get(name, 0) + 1
        assert max(waited.values(), default=0) <= longest
    assert engine.stats().num_free_blocks == 12
