"""Requests that share a prefix and are admitted to the same step."""

from __future__ import annotations

import pytest

from shared.engine.sequence.request import KVSource
from tests.fakes.engine.engines import (
    Run,
    drain,
    expected_tokens,
    generate,
    make_engine,
    make_request,
)
from tests.fakes.engine.model import FakeLoadedModel

pytestmark = pytest.mark.usefixtures("step_mode")


def test_a_prefix_is_computed_once_by_requests_of_the_same_step() -> None:
    loaded = FakeLoadedModel()
    engine = make_engine(loaded)
    shared = list(range(20))
    loaded.model.num_tokens_per_step.clear()
    prompts = {"a": [*shared, 1, 2, 3], "b": [*shared, 4, 5], "c": [*shared[:10], 6]}
    run = generate(engine, *(make_request(name, prompt) for name, prompt in prompts.items()))
    assert loaded.model.num_tokens_per_step[0] == 23 + 2 + 3
    for name, num_cached in (("a", 0), ("b", 20), ("c", 8)):
        (admitted,) = run.admitted(name)
        assert (admitted.num_cached_tokens, admitted.num_final_tokens) == (num_cached, 0)
        assert run.tokens(name) == expected_tokens(prompts[name], 8)
    engine.check_integrity()


def test_a_prefix_that_is_only_scheduled_is_not_taken_by_a_transfer() -> None:
    engine = make_engine()
    shared = list(range(20))
    engine.add(make_request("a", [*shared, 1]))
    engine.add(make_request("b", [*shared, 2], kv_source=KVSource.TRANSFER))
    run = Run()
    for event in engine.step():
        run.events[event.request_id].append(event)
    assert run.admitted("b")[0].num_cached_tokens == 0
    engine.release("b")
    drain(engine, run)
    assert run.tokens("a") == expected_tokens([*shared, 1], 8)
