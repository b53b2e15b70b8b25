"""Overlapped and recorded steps answer what synchronous ones answer, token for token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shared.engine.engine import Engine
from shared.engine.sequence.events import NewTokens
from shared.engine.settings.choices import SchedulingPolicy
from shared.engine.settings.engine import EngineConfig
from shared.engine.step.decode_graphs import EagerRecorder
from shared.engine.thread.request_stream import is_last
from shared.request.answer import FinishReason
from tests.fakes.engine.engines import (
    Run,
    StepMode,
    drain,
    expected_tokens,
    make_engine,
    make_request,
)
from tests.fakes.engine.model import VOCAB_SIZE, FakeLoadedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shared.engine.sequence.request import EngineRequest
    from shared.engine.step.decode_graphs import StepGraph, StepOutput

OTHER_MODES = [StepMode.OVERLAPPED, StepMode.RECORDED]
EVERY_OTHER = [*OTHER_MODES, StepMode.STAGED, StepMode.PARTED]
NUM_BLOCKS = 24

tokens = st.integers(0, VOCAB_SIZE - 1)
samplings = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(1, 12),
        "temperature": st.sampled_from([0.0, 0.0, 0.7, 1.5]),
        "seed": st.integers(0, 2**64 - 1),
    },
    optional={
        "top_k": st.integers(1, 20),
        "top_p": st.floats(0.1, 1.0),
        "min_p": st.floats(0.0, 0.5),
        "repetition_penalty": st.floats(0.5, 2.0),
        "presence_penalty": st.floats(-2, 2),
        "logit_bias": st.dictionaries(tokens, st.floats(-3, 3), max_size=3),
        "logprobs": st.integers(0, 3),
        "prompt_logprobs": st.integers(0, 3),
        # Many, so that answers end where nobody expects it.
        "stop_token_ids": st.lists(tokens, min_size=10, max_size=30).map(tuple),
        "hold_blocks": st.booleans(),
        "priority": st.integers(0, 2),
    },
)
prompts = st.builds(
    lambda start, num: [(start * 7 + i) % 90 for i in range(num)],
    st.integers(0, 3),
    st.integers(1, 30),
)


@dataclass(frozen=True)
class Arrival:
    """A request, the step before which it comes, and perhaps the one before which it is aborted."""

    request: EngineRequest
    step: int
    aborted_at: int | None


def arrivals(drawn: Sequence[tuple[list[int], dict, int, int | None]]) -> list[Arrival]:
    return [
        Arrival(make_request(str(i), prompt, **fields), step, lived and step + lived)
        for i, (prompt, fields, step, lived) in enumerate(drawn)
    ]


def run_all(arrivals: list[Arrival], mode: StepMode, **engine_settings: object) -> Run:
    engine = make_engine(None, mode, num_blocks=NUM_BLOCKS, **engine_settings)
    run, last = Run(), max(a.aborted_at or a.step for a in arrivals)
    for number in range(last + 1):
        for arrival in arrivals:
            if arrival.step == number:
                engine.add(arrival.request)
            if arrival.aborted_at == number:
                engine.abort(arrival.request.request_id)
        for event in engine.step():
            run.events[event.request_id].append(event)
        engine.check_integrity()
    # Whoever waits for blocks that others hold gets them when those let go.
    while engine.has_work() or engine.stats().num_held:
        drain(engine, run)
        for arrival in arrivals:
            name = arrival.request.request_id
            if run.events[name] and is_last(run.events[name][-1]):
                engine.release(name)
    assert engine.stats().num_free_blocks == NUM_BLOCKS
    engine.check_integrity()
    return run


@given(
    drawn=st.lists(
        st.tuples(prompts, samplings, st.integers(0, 12), st.none() | st.integers(1, 20)),
        min_size=1,
        max_size=10,
    ),
    mode=st.sampled_from(EVERY_OTHER),
    policy=st.sampled_from(SchedulingPolicy),
    budget=st.integers(8, 40),
)
def test_every_mode_gives_the_same_tokens(
    drawn: list, mode: StepMode, policy: SchedulingPolicy, budget: int
) -> None:
    plan = arrivals(drawn)
    limits = {"max_num_batched_tokens": budget, "scheduling_policy": policy}
    expected = run_all(plan, StepMode.SYNCHRONOUS, **limits)
    actual = run_all(plan, mode, **limits)
    for arrival in plan:
        name = arrival.request.request_id
        ends = [r.finish_reason(name) for r in (expected, actual)]
        if FinishReason.ABORT in ends:
            # One of the two may have been further when it was aborted.
            pairs = zip(expected.tokens(name), actual.tokens(name), strict=False)
            assert all(a == b for a, b in pairs)
            continue
        assert actual.new_tokens(name) == expected.new_tokens(name)
        assert ends[0] is ends[1]


@pytest.mark.parametrize("mode", OTHER_MODES)
def test_a_step_is_launched_before_the_one_before_it_is_known(mode: StepMode) -> None:
    loaded = FakeLoadedModel()
    engine = make_engine(loaded, mode)
    engine.add(make_request("a", range(9), max_tokens=4))
    loaded.model.num_tokens_per_step.clear()
    tokens = []
    for num_launched in (1, 2, 3, 4, 4):
        events = engine.step()
        tokens += [t for e in events if isinstance(e, NewTokens) for t in e.token_ids]
        assert len(loaded.model.num_tokens_per_step) == num_launched
        assert len(tokens) == max(0, num_launched - 1) or not engine.has_work()
    assert tokens == expected_tokens(range(9), 4)
    assert not engine.has_work()


@pytest.mark.parametrize(
    "fields", [{"logprobs": 1}, {"presence_penalty": 1.0}, {"logit_bias": {3: 1.0}}]
)
def test_what_needs_the_last_token_is_not_overlapped(fields: dict) -> None:
    engine = make_engine(None, StepMode.OVERLAPPED)
    engine.add(make_request("a", range(9), **fields))
    assert any(isinstance(event, NewTokens) for event in engine.step())


@pytest.mark.parametrize("mode", OTHER_MODES)
def test_the_surplus_token_after_a_stop_is_dropped(mode: StepMode) -> None:
    expected = expected_tokens(range(9), 8)
    loaded = FakeLoadedModel()
    engine = make_engine(loaded, mode)
    loaded.model.num_tokens_per_step.clear()
    engine.add(make_request("a", range(9), stop_token_ids=(expected[2],)))
    run = drain(engine)
    assert run.tokens("a") == expected[:3]
    assert len(loaded.model.num_tokens_per_step) == 4
    assert engine.stats().counters["generation_tokens"] == 3
    assert engine.stats().num_free_blocks == 64


@pytest.mark.parametrize("mode", OTHER_MODES)
def test_blocks_in_flight_are_not_given_away(mode: StepMode) -> None:
    engine = make_engine(None, mode, num_blocks=8)
    engine.add(make_request("a", range(24), max_tokens=8))
    run = drain(engine, until=lambda run: len(run.tokens("a")) == 1)
    engine.abort("a")
    engine.add(make_request("b", range(30, 38), max_tokens=2, hold_blocks=True))
    assert engine.stats().num_free_blocks == 1
    drain(engine, run)
    assert run.tokens("b") == expected_tokens(range(30, 38), 1)
    assert run.finish_reason("a") is FinishReason.ABORT
    engine.release("b")
    assert engine.stats().num_free_blocks == 8


@pytest.mark.parametrize("mode", OTHER_MODES)
def test_a_failing_step_takes_only_its_own_sequences_along(mode: StepMode) -> None:
    loaded = FakeLoadedModel()
    engine = make_engine(loaded, mode, max_num_seqs=2)
    engine.add(make_request("a", range(9), max_tokens=2))
    run = drain(engine, until=lambda run: len(run.tokens("a")) == 1)
    # "a" is on its last token, and "b" comes into the step that fails.
    engine.add(make_request("b", range(5)))
    loaded.model.error = RuntimeError("out of memory")
    drain(engine, run)
    assert run.tokens("a") == expected_tokens(range(9), 2)
    assert "out of memory" in str(run.failure("b"))
    assert (engine.broken, engine.stats().num_free_blocks) == (None, 64)


def test_a_step_whose_outcome_is_lost_fails_what_was_built_on_it() -> None:
    engine = make_engine(None, StepMode.OVERLAPPED)
    for name in "ab":
        engine.add(make_request(name, range(9)))
    engine.step()

    def lost(step: object) -> None:
        raise RuntimeError("device lost")

    collect = engine._parts.runner.collect
    engine._parts.runner.collect = lost  # type: ignore[method-assign, assignment]
    run = Run()
    for event in engine.step():
        run.events[event.request_id].append(event)
    engine._parts.runner.collect = collect  # type: ignore[method-assign]
    assert all("device lost" in str(run.failure(name)) for name in "ab")
    assert not engine.has_work()
    assert engine.stats().num_free_blocks == 64
    engine.check_integrity()


def watch_tokens(model: Any) -> list[int]:
    """Return a list that gets the ids of all tokens that the model computes."""
    computed: list[int] = []
    forward = model.forward

    def watched(token_ids: torch.Tensor, *others: Any) -> torch.Tensor:
        computed.extend(token_ids.tolist())
        hidden: torch.Tensor = forward(token_ids, *others)
        return hidden

    model.forward = watched
    return computed


def test_a_broken_model_gives_no_token_in_any_mode() -> None:
    for mode in StepMode:
        loaded = FakeLoadedModel()
        engine = make_engine(loaded, mode)
        loaded.model.compute_logits = lambda hidden: torch.full(  # type: ignore[method-assign]
            (len(hidden), VOCAB_SIZE), float("nan")
        )
        computed = watch_tokens(loaded.model)
        engine.add(make_request("a", range(9), temperature=0.7))
        engine.add(make_request("b", range(9)))
        run = drain(engine)
        assert all("no finite logits" in str(run.failure(name)) for name in "ab")
        assert min(computed) >= 0, mode  # also where a step is fed before the host has looked
        assert engine.stats().num_free_blocks == 64


class CountingRecorder(EagerRecorder):
    """Counts the recorded steps."""

    num_steps = 0

    def record(self, step: Callable[[], StepOutput]) -> StepGraph:
        self.num_steps += 1
        return super().record(step)


@pytest.mark.parametrize(
    ("own", "num_steps"),
    [({}, 3), ({"cuda_graph_sizes": (1,)}, 2), ({"enforce_eager": True}, 0)],
)
def test_as_many_steps_are_recorded_as_asked_for(own: dict[str, Any], num_steps: int) -> None:
    recorder = CountingRecorder()
    config = EngineConfig(block_size=4, num_blocks=16, max_num_seqs=4, **own)
    Engine(FakeLoadedModel(), config, recorder=recorder).close()
    assert recorder.num_steps == num_steps
