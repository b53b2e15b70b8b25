"""However a sequence ends, and whatever fails: blocks come back, and the others go on."""

from __future__ import annotations

from shared.engine.sequence.events import Failed
from tests.fakes.engine.engines import drain, expected_tokens, generate, make_engine, make_request
from tests.fakes.engine.model import FakeLoadedModel
from tests.fakes.engine.proposers import custom


def test_a_proposer_that_fails_is_asked_no_more() -> None:
    engine = make_engine(speculative_config=custom("Failing"))
    run = generate(engine, make_request("a", [1, 2, 3], max_tokens=9))
    assert run.tokens("a") == expected_tokens([1, 2, 3], 9)


def test_a_step_that_fails_takes_its_sequences_only() -> None:
    loaded = FakeLoadedModel()
    engine = make_engine(loaded, speculative_config=custom("FakeOracle", num_blocks=2))
    engine.add(make_request("a", [1, 2, 3], max_tokens=30))
    run = drain(engine, until=lambda run: len(run.tokens("a")) > 5)
    loaded.model.error = RuntimeError("no")
    run = drain(engine, run)
    assert isinstance(run.events["a"][-1], Failed)
    loaded.model.error = None
    run = generate(engine, make_request("b", [1, 2, 3], max_tokens=9))
    assert run.tokens("b") == expected_tokens([1, 2, 3], 9)
    assert engine.stats().num_free_blocks == engine.stats().num_blocks


def test_an_aborted_sequence_gives_its_blocks_back() -> None:
    engine = make_engine(speculative_config=custom("FakeOracle", num_blocks=3))
    engine.add(make_request("a", [1, 2, 3], max_tokens=30))
    drain(engine, until=lambda run: len(run.tokens("a")) > 5)
    assert engine.stats().num_free_blocks < engine.stats().num_blocks - 3
    engine.abort("a")
    drain(engine)
    assert engine.stats().num_free_blocks == engine.stats().num_blocks


def test_sequences_come_before_a_proposers_blocks() -> None:
    """The proposer gives back what it holds before anybody is preempted or kept waiting."""
    engine = make_engine(
        num_blocks=16, speculative_config=custom("FakeOracle", num_blocks=4, wrong_every=2)
    )
    requests = [make_request(str(i), [i, 1, 2], max_tokens=16) for i in range(3)]
    run = generate(engine, *requests)
    for request in requests:
        expected = expected_tokens(request.prompt_token_ids, 16)
        assert run.tokens(request.request_id) == expected
    assert engine.stats().counters["num_preemptions"] == 0
    assert engine.stats().num_free_blocks == 16
