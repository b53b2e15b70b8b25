"""The engine's three verbs on a fake model: batches, caching, preemption, ends, failures."""

from __future__ import annotations

import pytest

from shared.engine.sequence.events import Admitted
from shared.errors import InternalError, InvalidRequestError, UnavailableError
from shared.request.answer import FinishReason
from tests.fakes.engine.engines import (
    StepMode,
    cached_hashes,
    drain,
    expected_tokens,
    generate,
    make_engine,
    make_request,
)
from tests.fakes.engine.model import FakeLoadedModel

pytestmark = pytest.mark.usefixtures("step_mode")

PROMPTS = [list(range(i, i + n)) for i, n in enumerate((1, 3, 4, 5, 8, 17, 23), start=1)]


@pytest.mark.parametrize("max_num_batched_tokens", [8, 13, 64])
@pytest.mark.parametrize("num_blocks", [9, 14, 64])
def test_batching_chunking_and_preemption_change_no_token(
    num_blocks: int, max_num_batched_tokens: int
) -> None:
    engine = make_engine(num_blocks=num_blocks, max_num_batched_tokens=max_num_batched_tokens)
    run = generate(engine, *(make_request(str(i), p, max_tokens=9) for i, p in enumerate(PROMPTS)))
    for i, prompt in enumerate(PROMPTS):
        assert run.tokens(str(i)) == expected_tokens(prompt, 9)
        assert run.finish_reason(str(i)) is FinishReason.LENGTH
    assert engine.stats().num_free_blocks == num_blocks
    assert (engine.stats().counters["num_preemptions"] > 0) == (num_blocks < 64)


def test_a_second_request_starts_from_the_cached_prefix() -> None:
    loaded = FakeLoadedModel()
    engine = make_engine(loaded)
    prompt = list(range(30))
    generate(engine, make_request("a", prompt))
    loaded.model.num_tokens_per_step.clear()
    run = generate(engine, make_request("b", [*prompt[:20], 9, 9]))
    assert run.admitted("b")[0].num_cached_tokens == 20
    assert loaded.model.num_tokens_per_step[0] == 2
    assert run.tokens("b") == expected_tokens([*prompt[:20], 9, 9], 8)
    assert engine.stats().counters["prefix_cache_hits"] == 20


@pytest.mark.parametrize("length", [4, 8, 12])
def test_a_full_hit_leaves_a_block_to_compute(length: int) -> None:
    engine = make_engine()
    prompt = list(range(length))
    generate(engine, make_request("a", prompt))
    run = generate(engine, make_request("b", prompt))
    assert run.admitted("b")[0].num_cached_tokens == length - 4
    assert run.tokens("b") == expected_tokens(prompt, 8)


def test_generated_blocks_are_found_by_the_next_turn() -> None:
    engine = make_engine()
    first = generate(engine, make_request("a", range(6), max_tokens=8))
    turn = [*range(6), *first.tokens("a"), 1, 2]
    run = generate(engine, make_request("b", turn))
    assert run.admitted("b")[0].num_cached_tokens == 12  # the last token's KV was never computed


def test_tenants_do_not_share() -> None:
    engine = make_engine()
    generate(engine, make_request("a", range(20), cache_salt=b"a"))
    run = generate(engine, make_request("b", range(20), cache_salt=b"b"))
    assert run.admitted("b")[0].num_cached_tokens == 0


def test_without_prefix_caching_nothing_is_found() -> None:
    engine = make_engine(enable_prefix_caching=False)
    generate(engine, make_request("a", range(20)))
    run = generate(engine, make_request("b", range(20)))
    assert run.admitted("b")[0].num_cached_tokens == 0
    assert cached_hashes(engine) == []


def test_blocks_become_visible_only_after_their_step(step_mode: StepMode) -> None:
    engine = make_engine(max_num_batched_tokens=8)
    engine.add(make_request("a", range(20)))
    assert cached_hashes(engine) == []
    for _ in range(step_mode.lag):
        engine.step()
        assert cached_hashes(engine) == []
    engine.step()
    assert len(cached_hashes(engine)) == 2
    drain(engine)
    changes = engine.take_cache_changes()
    assert [h for change in changes for h in change.stored] == cached_hashes(engine)


def test_stop_and_end_tokens() -> None:
    expected = expected_tokens(range(9), 8)
    engine = make_engine()
    run = generate(
        engine,
        make_request("stop", range(9), stop_token_ids=(expected[2],)),
        make_request("eos", range(9), eos_token_ids=(expected[3],)),
        make_request("ignored", range(9), eos_token_ids=(expected[3],), ignore_eos=True),
    )
    assert run.tokens("stop") == expected[:3]
    assert run.new_tokens("stop")[-1].stop_token_id == expected[2]
    assert run.finish_reason("stop") is FinishReason.STOP
    assert run.tokens("eos") == expected[:4]
    assert run.tokens("ignored") == expected
    assert run.new_tokens("ignored")[-1].stop_token_id is None


def test_the_context_ends_an_answer() -> None:
    engine = make_engine(max_model_len=12)
    run = generate(engine, make_request("a", range(9), max_tokens=100))
    assert run.tokens("a") == expected_tokens(range(9), 3)
    assert run.finish_reason("a") is FinishReason.LENGTH


def test_resumed_tokens_count_as_output() -> None:
    expected = expected_tokens(range(9), 8)
    engine = make_engine()
    run = generate(engine, make_request("a", range(9), resumed_token_ids=tuple(expected[:5])))
    assert run.tokens("a") == expected[5:]


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("prompt", {"prompt": []}),
        ("prompt", {"prompt": [97]}),
        ("prompt", {"prompt": range(48)}),
        ("max_tokens", {"resumed_token_ids": (1, 2), "max_tokens": 2}),
        ("logit_bias", {"logit_bias": {97: 1.0}}),
        ("allowed_token_ids", {"allowed_token_ids": ()}),
        ("min_tokens", {"allowed_token_ids": (5,), "eos_token_ids": (5,), "min_tokens": 1}),
        ("bad_words_token_ids", {"bad_words_token_ids": ((),)}),
    ],
)
def test_impossible_requests_are_refused_at_once(param: str, fields: dict) -> None:
    engine = make_engine(num_blocks=12)
    with pytest.raises(InvalidRequestError) as caught:
        engine.add(make_request("a", **({"prompt": [1]} | fields)))
    assert caught.value.param == param
    assert not engine.has_work()


def test_an_id_is_used_once_at_a_time() -> None:
    engine = make_engine()
    engine.add(make_request("a", [1]))
    with pytest.raises(InvalidRequestError, match="already"):
        engine.add(make_request("a", [2]))
    drain(engine)
    engine.add(make_request("a", [2]))


def test_abort_ends_with_an_event_and_frees_everything(step_mode: StepMode) -> None:
    engine = make_engine(max_num_batched_tokens=8, max_num_seqs=1)
    engine.add(make_request("running", range(20)))
    engine.add(make_request("waiting", range(20)))
    run = drain(engine, until=lambda run: run.num_steps == 1)
    for request_id in ("running", "waiting", "unknown"):
        engine.abort(request_id)
    engine.check_integrity()
    # What a step in flight writes to is free when it is over.
    assert (engine.stats().num_free_blocks == 64) == (step_mode.lag == 0)
    run = drain(engine, run)
    assert engine.stats().num_free_blocks == 64
    assert run.finish_reason("running") is run.finish_reason("waiting") is FinishReason.ABORT
    assert run.events["unknown"] == []


def test_a_failing_step_fails_its_batch_only() -> None:
    loaded = FakeLoadedModel()
    engine = make_engine(loaded, max_num_seqs=1)
    loaded.model.error = RuntimeError("out of memory")
    run = generate(engine, make_request("a", range(9)))
    assert isinstance(run.failure("a"), InternalError)
    assert "out of memory" in str(run.failure("a"))
    assert (engine.broken, engine.stats().num_free_blocks, cached_hashes(engine)) == (
        None,
        64,
        [],
    )
    loaded.model.error = None
    assert generate(engine, make_request("b", range(9))).tokens("b") == expected_tokens(range(9), 8)


def test_a_broken_engine_fails_everybody_and_says_so() -> None:
    engine = make_engine(max_num_seqs=1)
    engine.add(make_request("a", range(9)))
    engine.add(make_request("b", range(9)))
    engine.step()
    engine._scheduler.schedule = None  # type: ignore[assignment, method-assign]
    assert {event.request_id for event in engine.step()} == {"a", "b"}
    assert isinstance(engine.broken, TypeError)
    assert not engine.has_work()
    with pytest.raises(InternalError, match="broken"):
        engine.add(make_request("c", [1]))


def test_constraints_that_leave_no_token() -> None:
    engine = make_engine()
    run = generate(
        engine, make_request("a", range(9), allowed_token_ids=(5,), bad_words_token_ids=((5,),))
    )
    assert isinstance(run.failure("a"), InvalidRequestError)
    assert engine.stats().num_free_blocks == 64


def test_held_blocks_outlive_the_sequence() -> None:
    engine = make_engine(max_num_batched_tokens=8)
    expected = expected_tokens(range(18), 1)
    run = generate(engine, make_request("p", range(18), hold_blocks=True))
    assert run.tokens("p") == expected
    assert run.finish_reason("p") is FinishReason.LENGTH
    assert run.computed("p") == [8, 16, 18]
    assert isinstance(run.events["p"][0], Admitted)
    assert (engine.stats().num_held, engine.stats().num_free_blocks) == (1, 59)
    engine.abort("p")
    assert engine.stats().num_free_blocks == 59
    engine.release("p")
    engine.release("p")
    assert (engine.stats().num_held, engine.stats().num_free_blocks) == (0, 64)
    engine.check_integrity()


def test_aborting_a_held_request_stops_computing_and_keeps_its_blocks() -> None:
    engine = make_engine(max_num_batched_tokens=8)
    engine.add(make_request("p", range(18), hold_blocks=True))
    engine.step()
    engine.abort("p")
    run = drain(engine)
    assert run.finish_reason("p") is FinishReason.ABORT
    assert engine.stats().num_free_blocks == 59
    engine.release("p")
    assert engine.stats().num_free_blocks == 64


def test_releasing_a_running_held_request_ends_it() -> None:
    engine = make_engine(max_num_batched_tokens=8)
    engine.add(make_request("p", range(18), hold_blocks=True))
    engine.step()
    engine.release("p")
    assert drain(engine).finish_reason("p") is FinishReason.ABORT
    assert engine.stats().num_free_blocks == 64


def test_a_held_first_token_that_stops_says_so() -> None:
    (first,) = expected_tokens(range(5), 1)
    engine = make_engine()
    run = generate(engine, make_request("p", range(5), hold_blocks=True, eos_token_ids=(first,)))
    assert run.finish_reason("p") is FinishReason.STOP


def test_pinned_prefixes_stay() -> None:
    engine = make_engine(num_blocks=8)
    generate(engine, make_request("a", range(16), max_tokens=1))
    pin, found = engine.pin_cached(cached_hashes(engine))
    assert found.num_blocks == 4
    run = generate(engine, make_request("b", range(50, 62), max_tokens=4))
    assert run.tokens("b") == expected_tokens(range(50, 62), 4)
    assert not set(found.blocks) & set(run.admitted("b")[0].tables[0])
    engine.unpin(pin)
    assert engine.stats().num_free_blocks == 8


def test_a_pin_that_blocks_admission_does_not_spin() -> None:
    engine = make_engine(num_blocks=8)
    generate(engine, make_request("a", range(16), max_tokens=1))
    pin, _ = engine.pin_cached(cached_hashes(engine))
    run = generate(engine, make_request("b", range(50, 70), max_tokens=4))
    assert run.events["b"] == []
    assert not engine.has_work()
    engine.unpin(pin)
    assert drain(engine).tokens("b") == expected_tokens(range(50, 70), 4)


def test_resetting_the_prefix_cache() -> None:
    engine = make_engine()
    engine.add(make_request("a", range(16), max_tokens=2))
    engine.step()
    with pytest.raises(UnavailableError):
        engine.reset_prefix_cache()
    drain(engine)
    assert engine.reset_prefix_cache() == 4
    assert cached_hashes(engine) == []
