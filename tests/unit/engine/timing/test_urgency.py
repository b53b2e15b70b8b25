"""Prompts by urgency: short ones pass, chunks of several share a step, none waits for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.engine.schedule.urgency import AGEING, Urgency, by_urgency
from shared.engine.sequence.events import Admitted
from shared.engine.sequence.request import KVSource
from shared.engine.sequence.sequence import Sequence
from shared.engine.settings.choices import SchedulingPolicy
from shared.engine.timing.step_model import PRIOR, StepCost, StepModel
from shared.kv.identity import KVIdentity
from tests.fakes.engine.engines import Run, StepMode, drain, expected_tokens, make_request
from tests.fakes.engine.timed_model import Clock, timed_engine

URGENCY = SchedulingPolicy.URGENCY
COST = StepCost(1.0, 0.1, 0.0, 0.2, 0.0)
#: Not overlapped: see `timed_engine`.
MODES = [StepMode.SYNCHRONOUS, StepMode.STAGED]


def text(num: int, start: int = 1) -> list[int]:
    return [(start * 11 + 3 * i) % 90 for i in range(num)]


def make_sequence(arrival: int, num_tokens: int, **fields: object) -> Sequence:
    request = make_request(str(arrival), text(num_tokens), **fields)
    return Sequence(request, arrival=arrival, identity=KVIdentity(bytes(32)))


@given(
    st.lists(st.tuples(st.integers(1, 3000), st.floats(0, 5)), min_size=2, max_size=8),
    st.floats(0, 10),
)
def test_the_order_is_that_of_what_is_left_less_a_part_of_the_wait(
    arrivals: list[tuple[int, float]], later_s: float
) -> None:
    clock = Clock()
    urgency = Urgency(StepModel(), max_step_tokens=256, clock=clock)
    keys = {}
    for number, (num_tokens, after_s) in enumerate(arrivals):
        clock.now_s += after_s
        seq = make_sequence(number, num_tokens)
        urgency.arrive(seq, 0)
        rest_ms = PRIOR.more_ms(num_tokens, 0) + -(-num_tokens // 256) * PRIOR.per_step
        keys[seq] = (rest_ms, clock.now_s)
    now_s = clock.now_s + later_s
    order = sorted(keys, key=by_urgency)
    values = [keys[seq][0] - AGEING * 1e3 * (now_s - keys[seq][1]) for seq in order]
    assert values == pytest.approx(sorted(values), abs=1e-3)


def test_priority_then_what_is_due_first() -> None:
    clock = Clock()
    urgency = Urgency(StepModel(), max_step_tokens=256, clock=clock)
    moved = make_sequence(0, 3000, kv_source=KVSource.TRANSFER)
    seqs = [moved, make_sequence(1, 10), make_sequence(2, 900), make_sequence(3, 900, priority=-1)]
    for seq in seqs:
        urgency.arrive(seq, 0)
    # What comes from elsewhere, and what has begun to answer, has nothing to compute first.
    back = make_sequence(4, 900)
    urgency.arrive(back, 0)
    urgency.put_back(back)
    cached = make_sequence(5, 900)
    urgency.arrive(cached, 896)
    order = [seq.arrival for seq in sorted([*seqs, back, cached], key=by_urgency)]
    assert order == [3, 0, 4, 5, 1, 2]


@pytest.mark.parametrize(("num_tokens", "num_steps"), [(20, 1), (150, 3)])
@pytest.mark.parametrize("mode", MODES)
def test_a_short_prompt_passes_a_long_one_that_goes_on_beside_it(
    mode: StepMode, num_tokens: int, num_steps: int
) -> None:
    engine, model, _ = timed_engine(
        COST, mode, scheduling_policy=URGENCY, num_blocks=200, max_num_batched_tokens=64
    )
    run = Run()
    engine.add(make_request("long", text(500), max_tokens=2))
    for _ in range(3):
        engine.step()
    model.steps.clear()
    engine.add(make_request("short", text(num_tokens, start=5), max_tokens=2))
    drain(engine, run, until=lambda run: bool(run.tokens("short")))
    assert run.num_steps == num_steps + mode.lag
    drain(engine, run)
    # Its step is full: it has a part of the long one, too.
    assert [work.num_prompt + work.num_decoding for work, _ in model.steps[:3]] == [64, 64, 64]
    assert run.tokens("short") == expected_tokens(text(num_tokens, start=5), 2)
    assert run.tokens("long") == expected_tokens(text(500), 2)
    assert engine.stats().num_free_blocks == 200


def test_a_prompt_that_others_left_without_a_block_goes_first_in_the_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rare: the blocks that a window gives back are still read by another sequence."""
    engine, _, _ = timed_engine(COST, scheduling_policy=URGENCY, num_blocks=200)
    engine.add(make_request("long", text(300), max_tokens=2))
    engine.step()
    blocks, grow = engine._scheduler.blocks, engine._scheduler.blocks.try_grow
    short_of = {"long"}
    monkeypatch.setattr(
        blocks, "try_grow", lambda seq, num: seq.request_id not in short_of and grow(seq, num)
    )
    computed = []
    for number in range(2):
        request = make_request(f"s{number}", text(9, start=number + 4), max_tokens=4)
        engine.add(request)
        admitted = {e.request_id for e in engine.step() if isinstance(e, Admitted)}
        computed.append(admitted | {seq.request_id for seq in engine._steps._output.num_new_tokens})
        assert engine.stats().counters["num_preemptions"] == 0
        short_of.clear()
    assert "s0" in computed[0]
    assert "long" not in computed[0]
    assert "long" in computed[1]
    assert "s1" not in computed[1]  # the long one took all of the step
    run = drain(engine)
    assert run.tokens("long") == expected_tokens(text(300), 2)


@pytest.mark.parametrize("mode", MODES)
def test_a_long_prompt_is_not_passed_for_ever(mode: StepMode) -> None:
    """There is always a short one that would fill the step."""
    engine, _, clock = timed_engine(
        COST, mode, scheduling_policy=URGENCY, num_blocks=100, max_num_batched_tokens=32
    )
    for number in range(2):  # it learns its steps
        engine.add(make_request(f"w{number}", text(60, start=number), max_tokens=2))
        drain(engine)
    began_s = clock.now_s
    engine.add(make_request("long", text(200), max_tokens=1))
    run = Run()
    alone_ms = 7 * COST.per_step + COST.more_ms(200, 0)
    num_short = 0
    while not run.tokens("long"):
        if engine.stats().num_waiting < 2:
            engine.add(make_request(f"s{num_short}", text(31, start=num_short + 3), max_tokens=1))
            num_short += 1
        for event in engine.step():
            run.events[event.request_id].append(event)
        assert num_short < 200, "it starves"
    waited_ms = 1e3 * (clock.now_s - began_s)
    # Those that come until it is due pass it, and one may be in each step behind.
    assert alone_ms < waited_ms < (1 / AGEING + 2) * alone_ms
    assert num_short > 4
    for number in range(num_short):
        engine.abort(f"s{number}")
    drain(engine)
    assert engine.stats().num_free_blocks == 100
