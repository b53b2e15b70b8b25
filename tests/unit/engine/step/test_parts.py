"""Steps of prompts in parts: others decode between them, and no answer changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from shared.engine.sequence.events import NewTokens
from shared.engine.sequence.request import KVSource
from shared.engine.timing.step_bound import PART_MS, prompt_room_ms
from shared.engine.timing.step_model import StepCost
from shared.engine.timing.step_work import StepWork
from shared.identity import Role
from shared.request.answer import FinishReason
from tests.fakes.engine.engines import (
    ModelInParts,
    Parts,
    Run,
    StepMode,
    drain,
    expected_tokens,
    generate,
    make_engine,
    make_request,
)
from tests.fakes.engine.model import FakeLoadedModel, FakeModel
from tests.fakes.engine.timed_model import Clock

if TYPE_CHECKING:
    from shared.engine.engine import Engine

LONG, SHORT = [i % 90 for i in range(50)], [5, 6, 7]


def step(engine: Engine, run: Run) -> list[Any]:
    events = engine.step()
    for event in events:
        run.events[event.request_id].append(event)
    engine.check_integrity()
    return events


def handed_over(engine: Engine, run: Run, *, max_tokens: int = 5) -> None:
    """Hand a request over to an engine that may be in a step; its blocks are copied by hand."""
    prefill = make_engine(mode=StepMode.SYNCHRONOUS)
    sent = generate(prefill, make_request("d", SHORT, hold_blocks=True))
    engine.add(make_request("d", SHORT, kv_source=KVSource.TRANSFER, max_tokens=max_tokens))
    while not run.admitted("d"):
        step(engine, run)
    assert prefill.kv_memory is not None
    assert engine.kv_memory is not None
    [theirs], [ours] = sent.admitted("d")[0].tables, run.admitted("d")[0].tables
    engine.kv_memory.blocks[ours[0]] = prefill.kv_memory.blocks[theirs[0]]
    engine.complete_transfer("d", sent.tokens("d")[0])


def test_a_sequence_that_is_handed_over_decodes_between_the_parts_of_a_prompt() -> None:
    engine, run = make_engine(mode=StepMode.PARTED), Run()
    engine.add(make_request("long", LONG))
    step(engine, run)
    assert engine.is_in_parts
    handed_over(engine, run)
    assert engine.is_in_parts
    assert not [event for event in step(engine, run) if event.request_id == "long"]
    assert run.tokens("d") == expected_tokens(SHORT, 2)[1:]
    drain(engine, run)
    assert run.tokens("d") == expected_tokens(SHORT, 5)[1:]
    assert run.tokens("long") == expected_tokens(LONG, 8)


def test_no_prompt_is_computed_beside_a_step_of_prompts() -> None:
    model = FakeModel()
    engine, run = make_engine(FakeLoadedModel(model=model), StepMode.PARTED), Run()
    engine.add(make_request("long", LONG))
    step(engine, run)
    model.num_tokens_per_step.clear()
    engine.add(make_request("other", LONG[5:]))
    while not run.tokens("long"):
        step(engine, run)
        assert run.admitted("other")
    assert model.num_tokens_per_step == [len(LONG)]
    drain(engine, run)
    assert run.tokens("other") == expected_tokens(LONG[5:], 8)


def test_only_a_worker_s_steps_of_prompts_alone_have_parts() -> None:
    engine, run = make_engine(mode=StepMode.PARTED), Run()
    engine.prefer(None)
    engine.add(make_request("a", LONG))
    step(engine, run)
    assert not engine.is_in_parts
    assert run.tokens("a")
    engine.prefer(Role.DECODE)
    engine.add(make_request("b", LONG[1:]))
    step(engine, run)  # beside a, which decodes
    assert not engine.is_in_parts
    drain(engine, run)
    whole: list[dict[str, Any]] = [{"async_scheduling": True}, {"enable_chunked_prefill": False}]
    for fields in whole:
        engine = make_engine(mode=StepMode.PARTED, max_num_batched_tokens=300, **fields)
        engine.add(make_request("a", LONG))
        engine.step()
        assert not engine.is_in_parts


def test_a_prompt_that_is_given_up_in_parts_keeps_its_blocks_until_the_step_is_over() -> None:
    engine, run = make_engine(mode=StepMode.PARTED), Run()
    num_free = engine.stats().num_free_blocks
    engine.add(make_request("long", LONG))
    engine.add(make_request("too", LONG[3:]))
    step(engine, run)
    engine.abort("long")
    step(engine, run)
    assert run.finish_reason("long") is FinishReason.ABORT
    assert engine.stats().num_free_blocks < num_free - 2 * len(LONG) // 4 + 4
    drain(engine, run)
    assert run.tokens("too") == expected_tokens(LONG[3:], 8)
    assert engine.stats().num_free_blocks == num_free


class Failing(ModelInParts):
    """Steps in parts fail in the last one."""

    def begin_forward(self, *args: Any) -> Parts:
        del args
        return Parts(self._fail)

    def _fail(self) -> None:
        raise RuntimeError("a broken layer")


def test_an_error_in_a_part_takes_only_that_step_along() -> None:
    failing: Any = Failing(FakeModel())
    engine, run = make_engine(FakeLoadedModel(model=failing), StepMode.PARTED), Run()
    num_free = engine.stats().num_free_blocks
    engine.add(make_request("long", LONG))
    step(engine, run)
    handed_over(engine, run)
    drain(engine, run)
    assert "a broken layer" in str(run.failure("long"))
    assert run.tokens("d") == expected_tokens(SHORT, 5)[1:]
    assert engine.stats().num_free_blocks == num_free


def test_settled_nothing_is_in_parts_any_more() -> None:
    engine, run = make_engine(mode=StepMode.PARTED), Run()
    engine.add(make_request("long", LONG))
    step(engine, run)
    engine.settle()
    assert not engine.is_in_parts
    assert [type(event) for event in engine.take_events()] == [NewTokens]
    drain(engine, run)
    engine.add(make_request("long", LONG))
    engine.step()
    engine.close()


class Noting(ModelInParts):
    """Knows how long each part was to be; there are twelve, of 10 ms each."""

    def __init__(self, model: Any, clock: Clock | None = None) -> None:
        super().__init__(model)
        self._clock = clock or Clock()
        self.room_ms: list[float] = []

    def begin_forward(self, *args: Any) -> Parts:
        parts = super().begin_forward(*args)
        parts.advance = self._advance(parts, parts.advance, 12)  # type: ignore[method-assign]
        return parts

    def _advance(self, parts: Parts, end: Any, num: int) -> Any:
        left = [num]

        def advance(room_ms: float) -> bool:
            self.room_ms.append(room_ms)
            self._clock.now_s += 0.01
            left[0] -= 1
            return bool(end(float("inf"))) if not left[0] else False

        return advance


def test_the_time_of_a_step_in_parts_is_its_own() -> None:
    clock, model = Clock(), FakeModel()
    forward = model.forward

    def timed(*args: Any) -> Any:
        clock.now_s += 0.007
        return forward(*args)

    model.forward = timed  # type: ignore[method-assign]
    noting: Any = Noting(model, clock)
    engine = make_engine(FakeLoadedModel(model=noting), StepMode.PARTED, clock=clock)
    run = Run()
    engine.add(make_request("long", LONG, max_tokens=1))
    step(engine, run)
    clock.now_s += 0.5  # of others
    handed_over(engine, run)
    drain(engine, run)
    assert run.tokens("d") == expected_tokens(SHORT, 5)[1:]
    assert engine.stats().counters["prefill_step_us"] == 12 * 10_000 + 7_000


@pytest.mark.parametrize("role", [Role.DECODE, Role.PREFILL])
def test_prompts_get_what_they_would_have_in_a_step_with_those_that_decode(role: Role) -> None:
    cost = StepCost(2.0, 0.1, 2e-4, 0.3, 1e-4)
    noting: Any = Noting(FakeModel())
    engine, run = make_engine(FakeLoadedModel(model=noting), StepMode.PARTED), Run()
    engine._steps._model.cost = engine._scheduler.limit._model.cost = cost
    engine._steps._model.observe = lambda *_: None  # type: ignore[method-assign]
    engine.prefer(role)
    engine.add(make_request("long", LONG, max_tokens=1))
    step(engine, run)
    handed_over(engine, run, max_tokens=4)
    assert set(noting.room_ms) == {PART_MS}
    noting.room_ms.clear()
    drain(engine, run)
    beside = noting.room_ms[:3]
    plain_ms = cost.step_ms(StepWork(1, len(SHORT)))
    assert beside == pytest.approx([prompt_room_ms(plain_ms, cost.per_step)] * 3, rel=0.05)
    assert set(noting.room_ms[3:]) == {PART_MS}
