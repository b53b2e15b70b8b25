"""Steps with prompts stay as short as the sequences that decode in them may ask for."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.engine.schedule.chunk_limit import ChunkLimit
from shared.engine.sequence.events import Admitted, NewTokens
from shared.engine.sequence.request import KVSource
from shared.engine.sequence.sequence import Sequence
from shared.engine.settings.choices import SchedulingPolicy
from shared.engine.timing.step_bound import (
    LEAST_PROMPTS,
    LONGEST_STEP_MS,
    PROMPT_STRETCH,
    prompt_room_ms,
)
from shared.engine.timing.step_model import StepCost, StepModel
from shared.errors import InvalidRequestError
from shared.identity import Role
from tests.accounting.effort import examples
from tests.fakes.engine.engines import StepMode, drain, expected_tokens, generate, make_request
from tests.fakes.engine.timed_model import Clock, TimedModel, timed_engine

if TYPE_CHECKING:
    from collections.abc import Sequence as Seq
    from typing import Any

    from shared.engine.engine import Engine

COST = StepCost(2.0, 0.1, 2e-4, 0.3, 1e-4)
BLOCK = 4


def text(num: int, start: int = 1) -> Seq[int]:
    return [(start * 7 + 3 * i) % 90 for i in range(num)]


def start(
    bounds: Seq[float],
    mode: StepMode = StepMode.SYNCHRONOUS,
    *,
    max_tokens: int = 60,
    **fields: Any,
) -> tuple[Engine, TimedModel, Clock]:
    """An engine that knows its steps, and has a sequence that decodes for each bound."""
    fields = {"num_blocks": 600, "max_num_batched_tokens": 400, "max_num_seqs": 8} | fields
    engine, model, clock = timed_engine(COST, mode, **fields)
    for num in (4, 40, 160):
        engine.add(make_request(f"w{num}", text(num, start=num), max_tokens=12))
        engine.step()
    drain(engine)
    for number, bound in enumerate(bounds):
        prompt = [number % 90, 1]
        engine.add(make_request(f"d{number}", prompt, max_tokens=max_tokens, max_itl_ms=bound))
    for _ in range(6):
        engine.step()
    model.steps.clear()
    return engine, model, clock


def gaps_ms(engine: Engine, clock: Clock, names: Seq[str]) -> dict[str, list[float]]:
    """Run to the end; return the times between the tokens of some sequences."""
    last: dict[str, float] = {}
    gaps = defaultdict(list)
    for _ in range(2000):
        if not engine.has_work():
            break
        for event in engine.step():
            name = event.request_id
            if isinstance(event, NewTokens) and name in names:
                if name in last:
                    gaps[name].append(1e3 * (clock.now_s - last[name]))
                last[name] = clock.now_s
    return gaps


@pytest.mark.parametrize("mode", [StepMode.SYNCHRONOUS, StepMode.STAGED])
@pytest.mark.parametrize("role", [None, Role.PREFILL])
def test_no_token_comes_later_than_the_tightest_bound(mode: StepMode, role: Role | None) -> None:
    bound_ms = 20.0 if mode is StepMode.SYNCHRONOUS else 60.0
    # With a preference one without a bound would have a limit, too.
    last_ms = 0.0 if role is None else 5 * bound_ms
    engine, model, clock = start([bound_ms, 3 * bound_ms, last_ms], mode)
    engine.prefer(role)
    engine.add(make_request("long", text(1200), max_tokens=1))
    gaps = gaps_ms(engine, clock, ["d0", "d1", "d2"])
    assert max(gaps["d0"]) <= bound_ms
    assert min(len(each) for each in gaps.values()) > 50
    # And the room is used.
    taken = [work.num_prompt for work, _ in model.steps if work.num_prompt]
    assert taken[2] > 4 * BLOCK
    assert max(gaps["d0"]) > 0.6 * bound_ms


def test_the_bound_ends_with_its_sequence() -> None:
    engine, model, _ = start([20.0, 0.0])
    engine.add(make_request("long", text(1500), max_tokens=1))
    engine.step()
    engine.abort("d0")
    model.steps.clear()
    engine.step()
    assert model.steps[0][0].num_prompt > 390
    drain(engine)


@pytest.mark.parametrize("mode", [StepMode.SYNCHRONOUS, StepMode.STAGED])
@pytest.mark.parametrize(
    ("role", "num"), [(Role.DECODE, 2), (Role.PREFILL, 30), (Role.DECODE, 110), (Role.PREFILL, 110)]
)
def test_a_worker_stretches_short_steps_more_than_long_ones(
    num: int, role: Role, mode: StepMode
) -> None:
    """Not every role with every number: the limit asks only whether there is a role."""
    engine, model, _ = start([0.0] * num, mode, max_tokens=30, num_blocks=2000, max_num_seqs=120)
    engine.prefer(role)
    engine.add(make_request("long", text(900), max_tokens=1))
    for _ in range(12):
        engine.step()
    shared = [(work, ms) for work, ms in model.steps if work.num_prompt and work.num_decoding]
    assert len(shared) > 5
    for work, ms in shared[3:]:
        added_ms = COST.per_prompt * work.num_prompt + COST.per_pair * work.num_pairs
        plain_ms = ms - added_ms
        least_ms = COST.more_ms(BLOCK, 900)
        # Of a few sequences about as much as the step, of many a third of it, else the fixed part.
        room_ms = {2: plain_ms, 30: COST.per_step, 110: max(2.0, plain_ms / 3)}[num]
        assert added_ms <= max(1.6 * room_ms, 1.1 * least_ms)
        assert added_ms >= 0.6 * room_ms or work.num_prompt == BLOCK
    # From the next step on it is another worker.
    engine.prefer(None)
    for _ in range(1 + mode.lag):
        engine.step()
    assert model.steps[-1][0].num_prompt > 250
    drain(engine)


@pytest.mark.parametrize(
    ("plain_ms", "room_ms"), [(12, 12), (20, 20), (45, 20), (60, 20), (90, 30)]
)
def test_the_room_of_prompts_beside_steps_of_all_lengths(plain_ms: float, room_ms: float) -> None:
    """A step of next to no sequences takes 20 ms."""
    assert prompt_room_ms(plain_ms, least_ms=20) == pytest.approx(room_ms)


@given(least=st.floats(0.1, 1e3), plain=st.floats(0.1, 1e3), more=st.floats(0.0, 1e3))
def test_more_sequences_leave_no_less_time_for_prompts(
    least: float, plain: float, more: float
) -> None:
    room_ms = prompt_room_ms(plain, least)
    assert LEAST_PROMPTS * plain <= room_ms <= (PROMPT_STRETCH - 1) * plain
    assert prompt_room_ms(plain + more, least) >= room_ms


def test_prompts_alone_take_no_long_step_where_others_hand_over() -> None:
    engine, model, _ = start([], max_num_batched_tokens=2000, num_blocks=2000)
    for role, start_at in ((Role.DECODE, 5), (Role.PREFILL, 50)):
        engine.prefer(role)
        for number, name in enumerate("ab"):
            prompt = text(1500, start=start_at + number)
            engine.add(make_request(name, prompt, max_tokens=1))
        model.steps.clear()
        run = drain(engine, until=lambda run: bool(run.tokens("a")))
        assert not run.tokens("b")
        drain(engine)
        took_ms = [ms for _, ms in model.steps]
        assert max(took_ms[2:]) <= 1.25 * LONGEST_STEP_MS  # the model learns still
        assert max(took_ms) > 0.7 * LONGEST_STEP_MS
    # Without others a step is as long as its tokens.
    engine.prefer(None)
    engine.add(make_request("c", text(1500, start=90), max_tokens=1))
    model.steps.clear()
    drain(engine)
    assert model.steps[0][1] > 1.5 * LONGEST_STEP_MS


def test_a_block_of_a_prompt_is_computed_in_every_step() -> None:
    engine, model, _ = start([1e-3, 0.0])
    engine.add(make_request("a", text(60), max_tokens=2))
    engine.add(make_request("b", text(50, start=4), max_tokens=2))
    run = drain(engine, until=lambda run: bool(run.tokens("b")))
    assert {work.num_prompt for work, _ in model.steps} <= {BLOCK, BLOCK - 2, 2}
    assert run.num_steps <= 2 + 110 // BLOCK
    assert run.tokens("a") == expected_tokens(text(60), 2)
    drain(engine)
    assert engine.stats().counters["limited_steps"] > 10


def test_who_is_computed_elsewhere_does_not_wait_for_the_room_of_those_computed_here() -> None:
    engine, _, _ = start([1e-3])
    for name in "ab":
        engine.add(make_request(name, text(200, start=ord(name)), max_tokens=1))
    engine.step()
    engine.add(make_request("moved", text(60), kv_source=KVSource.TRANSFER))
    admitted = [e.request_id for e in engine.step() if isinstance(e, Admitted)]
    assert "moved" in admitted
    engine.release("moved")
    run = drain(engine)
    for name in "ab":
        assert run.tokens(name) == expected_tokens(text(200, start=ord(name)), 1)


def test_the_second_token_of_what_was_handed_over_waits_for_no_prompt() -> None:
    sender, _, _ = start([])
    engine, model, _ = start([0.0] * 3)
    engine.prefer(Role.PREFILL)
    engine.add(make_request("long", text(900), max_tokens=1))
    for number in (1, 2):
        prompt, name = text(BLOCK, start=20 + number), f"moved{number}"
        sent = generate(sender, make_request(name, prompt, hold_blocks=True))
        engine.add(make_request(name, prompt, max_tokens=5, kv_source=KVSource.TRANSFER))
        run = drain(engine, until=lambda run, name=name: bool(run.admitted(name)))
        [theirs], [ours] = sent.admitted(name)[0].tables, run.admitted(name)[0].tables
        assert sender.kv_memory is not None
        assert engine.kv_memory is not None
        engine.kv_memory.blocks[ours[0]] = sender.kv_memory.blocks[theirs[0]]
        engine.complete_transfer(name, sent.tokens(name)[0])
        model.steps.clear()
        for _ in range(3):
            engine.step()
        first, *others = [work.num_prompt for work, _ in model.steps]
        assert first == BLOCK
        assert min(others) > BLOCK
    drain(engine)


@pytest.mark.parametrize("source", list(KVSource))
def test_only_what_was_handed_over_has_waited_and_only_for_its_second_token(
    source: KVSource,
) -> None:
    limit = ChunkLimit(StepModel(COST), block_size=BLOCK)
    limit.preference = Role.PREFILL
    request = make_request("a", text(40), kv_source=source)
    seq = Sequence(request, arrival=0, identity=request.identity(b""), num_groups=1)
    for number in range(2):
        seq.append_token(1)
        limit.open([seq], {seq: 1})
        is_held_back = source is KVSource.TRANSFER and not number
        assert (limit.most(100, 0) == BLOCK) is is_held_back
        # Prompts in parts get their share behind the step, whatever is in it.
        assert limit.close() == pytest.approx(COST.per_step)


def test_a_prompt_is_not_started_from_blocks_of_a_step_that_it_is_no_part_of() -> None:
    """Otherwise it would read what that step did not write, if it failed."""
    engine, model, _ = start([1e-3])
    common = text(40)
    engine.add(make_request("a", common, max_tokens=1))
    engine.add(make_request("b", [*common, 5, 6], max_tokens=1))
    run = drain(engine, until=lambda run: bool(run.admitted("b")))
    event = run.admitted("b")[0]
    assert event.num_cached_tokens == event.num_final_tokens
    model.error = RuntimeError("a bad step")
    drain(engine, run, until=lambda run: run.failure("a") is not None)
    model.error = None
    engine.add(make_request("again", [*common, 5, 6], max_tokens=3))
    drain(engine, run)
    assert run.tokens("again") == expected_tokens([*common, 5, 6], 3)


def test_without_chunks_there_is_no_limit() -> None:
    engine, model, _ = start([1e-3], enable_chunked_prefill=False, max_model_len=300)
    engine.prefer(Role.DECODE)
    engine.add(make_request("long", text(200), max_tokens=1))
    engine.step()
    assert model.steps[-1][0].num_prompt == 200
    drain(engine)


@pytest.mark.parametrize("bound_ms", [-1.0, float("nan"), float("inf")])
def test_a_bound_that_is_none_is_refused(bound_ms: float) -> None:
    engine, _, _ = timed_engine(COST)
    with pytest.raises(InvalidRequestError, match=r"request a: a bound of .* ms") as caught:
        engine.add(make_request("a", [1], max_itl_ms=bound_ms))
    assert caught.value.param == "max_itl_ms"


@settings(max_examples=examples(12, 150))
@given(
    prompts=st.lists(st.integers(1, 90), min_size=1, max_size=6),
    bounds=st.lists(st.sampled_from([0.0, 5.0, 9.0, 25.0]), min_size=1, max_size=3),
    role=st.sampled_from([None, Role.DECODE]),
    policy=st.sampled_from([SchedulingPolicy.FCFS, SchedulingPolicy.URGENCY]),
    mode=st.sampled_from([StepMode.SYNCHRONOUS, StepMode.STAGED]),
)
def test_whatever_the_bounds_the_answers_are_right(
    prompts: list[int],
    bounds: list[float],
    role: Role | None,
    policy: SchedulingPolicy,
    mode: StepMode,
) -> None:
    engine, _, _ = start(bounds, mode, scheduling_policy=policy, num_blocks=80)
    engine.prefer(role)
    for number, num in enumerate(prompts):
        engine.add(make_request(f"p{number}", text(num, start=number), max_tokens=5))
        engine.step()
    run = drain(engine)
    for number, num in enumerate(prompts):
        tokens = run.tokens(f"p{number}")
        expected = expected_tokens(text(num, start=number), 5)
        assert tokens == expected[len(expected) - len(tokens) :]
    assert engine.stats().num_free_blocks == 80
