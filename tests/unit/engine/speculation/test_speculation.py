"""I8, I11: with speculation an engine says what it says without, token for token."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shared.engine.llm import LLM
from shared.engine.sequence.request import KVSource
from shared.model.loader import load_model
from shared.request.answer import FinishReason
from shared.request.sampling_params import SamplingParams
from tests.fakes.engine.engines import (
    StepMode,
    cached_hashes,
    drain,
    expected_tokens,
    generate,
    logprobs_of,
    make_engine,
    make_request,
)
from tests.fakes.engine.model import VOCAB_SIZE, FakeLoadedModel
from tests.fakes.engine.proposers import Drawn, custom
from tests.unit.engine.speculation.settings import speculate

if TYPE_CHECKING:
    from pathlib import Path

    from shared.engine.engine import Engine
    from shared.engine.sequence.request import EngineRequest
    from shared.model.loaded import LoadedModel

LOOPING = [7, 8, 9, 7, 8, 9, 7, 8]
ASKED: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 0.9, "top_p": 0.95, "seed": 3},
    "other answer": {"temperature": 0.9, "top_p": 0.95, "seed": 3, "sample_index": 1},
    "penalties": {"temperature": 0.8, "seed": 4, "repetition_penalty": 1.2},
    "presence": {"presence_penalty": 0.5, "frequency_penalty": 0.3},
    "logprobs": {"logprobs": 2},
    "bias": {"logit_bias": {5: 2.0}, "bad_words_token_ids": ((9, 7), (30,))},
    "allowed": {"allowed_token_ids": tuple(range(3, 60)), "temperature": 1.0, "seed": 5},
    "off": {"num_speculative_tokens": 0},
    "short": {"max_tokens": 2},
    "one": {"max_tokens": 1},
}


def prompt_of(i: int) -> list[int]:
    random = np.random.default_rng(i)
    return random.integers(3, 90, 5 + i).tolist() + (LOOPING if i % 2 else [])


def asked(max_tokens: int = 20) -> list[EngineRequest]:
    return [
        make_request(name, prompt_of(i), **({"max_tokens": max_tokens} | params))
        for i, (name, params) in enumerate(ASKED.items())
    ]


def answers(engine: Engine, requests: list[EngineRequest]) -> dict[str, Any]:
    """What everybody was told, without the number of pieces that it came in."""
    run = generate(engine, *requests)
    told = {
        request.request_id: (
            run.tokens(request.request_id),
            *logprobs_of(run, request.request_id),
            run.finish_reason(request.request_id),
        )
        for request in requests
    }
    stats = engine.stats()
    assert stats.num_free_blocks == stats.num_blocks
    engine.close()
    return told


@pytest.fixture(scope="module", params=["fake", "llama"])
def loaded(request: pytest.FixtureRequest) -> Any:
    if request.param == "fake":
        return FakeLoadedModel()
    return request.getfixturevalue("llama")


@pytest.fixture(scope="module")
def plain(loaded: Any) -> dict[str, Any]:
    return answers(make_engine(loaded), asked())


@pytest.fixture(scope="module")
def script(plain: dict[str, Any]) -> dict[str, list[int]]:
    return {name: told[0] for name, told in plain.items()}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_blocks": 20, "max_num_batched_tokens": 8},
        {"max_num_batched_tokens": 11, "max_num_seqs": 3},
        {"enable_prefix_caching": False},
    ],
    ids=["roomy", "preempting", "chunked", "uncached"],
)
@pytest.mark.parametrize("method", ["ngram", "suffix", "right", "half", "wrong"])
def test_answers_do_not_change(
    loaded: Any,
    plain: dict[str, Any],
    script: dict[str, list[int]],
    method: str,
    settings: dict[str, Any],
) -> None:
    """Sampled ones neither, for every seed; with all kinds of requests in one batch."""
    wrong_every = {"right": 0, "half": 3, "wrong": 1}.get(method)
    config = (
        speculate(method, prompt_lookup_min=1)
        if wrong_every is None
        else custom("Scripted", answers=script, wrong_every=wrong_every)
    )
    engine = make_engine(loaded, speculative_config=config, **settings)
    assert answers(engine, asked()) == plain
    counters = engine.stats().counters
    drafted = counters["spec_decode_num_draft_tokens"]
    accepted = counters["spec_decode_num_accepted_tokens"]
    assert sum(engine.stats().accepted_per_pos) == accepted
    if "num_blocks" in settings and method != "right":  # which needs too few steps for that
        assert counters["num_preemptions"] > 0
    if method == "right":
        assert 0 < accepted == drafted
        assert counters["engine_steps"] < 100
    elif method == "half":
        assert 0 < accepted < drafted
    elif method == "wrong":
        assert accepted == 0 < drafted


@pytest.mark.parametrize("mode", StepMode)
def test_every_way_to_run_steps_gives_the_same(mode: StepMode) -> None:
    """With the switch on, steps with and without guesses alternate, overlapped or recorded."""
    requests = asked()
    told = answers(make_engine(mode=StepMode.SYNCHRONOUS), requests)
    for config in (
        custom("FakeOracle", wrong_every=5, num_blocks=1),
        custom("FakeOracle", wrong_every=5, adaptive=True),
    ):
        assert answers(make_engine(mode=mode, speculative_config=config), requests) == told


def test_fewer_steps_are_needed() -> None:
    engine = make_engine(speculative_config=custom("FakeOracle", num=4))
    run = generate(engine, make_request("a", [1, 2, 3], max_tokens=21))
    assert run.tokens("a") == expected_tokens([1, 2, 3], 21)
    # The first token, then five at a time.
    assert [len(e.token_ids) for e in run.new_tokens("a")] == [1, 5, 5, 5, 5]
    assert [e.num_accepted_tokens for e in run.new_tokens("a")] == [0, 4, 4, 4, 4]
    assert engine.stats().accepted_per_pos == (4, 4, 4, 4)


def test_requests_and_batch_sizes_have_their_own_number() -> None:
    config = json.loads(custom("FakeOracle", num=4))
    config["num_speculative_tokens_per_batch_size"] = [[2, 8, 1]]
    engine = make_engine(speculative_config=json.dumps(config))
    requests = {
        "off": make_request("off", [1, 2, 3], max_tokens=9, num_speculative_tokens=0),
        "two": make_request("two", [1, 2, 3], max_tokens=9, num_speculative_tokens=2),
        "set": make_request("set", [1, 2, 3], max_tokens=9),
    }
    for name, most in (("off", 0), ("two", 2), ("set", 4)):
        run = generate(engine, requests[name])
        assert max(e.num_draft_tokens for e in run.new_tokens(name)) == most
    pair = [make_request(name, [4, 5], max_tokens=9) for name in "ab"]
    run = generate(engine, *pair)
    assert {e.num_draft_tokens for e in run.new_tokens("a")[1:-1]} == {1}


@pytest.mark.parametrize("at", range(6))
def test_an_answer_ends_inside_an_accepted_run(at: int) -> None:
    """With a stop token, whatever would have been right behind it."""
    right = expected_tokens([1, 2, 3], 12)
    stop = right[at]
    first = right.index(stop)
    request = make_request("a", [1, 2, 3], max_tokens=12, stop_token_ids=(stop,))
    engine = make_engine(speculative_config=custom("FakeOracle"))
    run = generate(engine, request)
    assert run.tokens("a") == right[: first + 1]
    assert run.finish_reason("a") is FinishReason.STOP
    assert run.new_tokens("a")[-1].stop_token_id == stop


def test_the_longest_context_is_not_passed() -> None:
    for length in range(8, 20):
        engine = make_engine(speculative_config=custom("FakeOracle"), max_model_len=20)
        prompt = list(range(length))
        run = generate(engine, make_request("a", prompt, max_tokens=50))
        assert run.tokens("a") == expected_tokens(prompt, 20 - length)
        assert run.finish_reason("a") is FinishReason.LENGTH


def test_only_accepted_tokens_are_published() -> None:
    """What lookups find afterwards is the same as without speculation."""
    request = make_request("a", [1, 2, 3], max_tokens=30)
    without = make_engine()
    engine = make_engine(speculative_config=custom("FakeOracle", wrong_every=3))
    generate(without, request)
    generate(engine, request)
    assert cached_hashes(engine) == cached_hashes(without)
    again = make_request("b", [1, 2, 3, *expected_tokens([1, 2, 3], 30)], max_tokens=5)
    run = generate(engine, again)
    assert run.admitted("b")[0].num_cached_tokens == 32
    assert run.tokens("b") == expected_tokens(again.prompt_token_ids, 5)


@pytest.mark.parametrize("first_token", [True, False])
def test_sequences_that_come_from_elsewhere_speculate(first_token: bool) -> None:
    """With the KV of a peer and its first token, or with nothing; and resumed ones."""
    prompt, right = [1, 2, 3, 4, 5], expected_tokens([1, 2, 3, 4, 5], 20)
    sender = make_engine()
    sender.add(make_request("a", prompt, max_tokens=20, hold_blocks=True))
    drain(sender)
    engine = make_engine(speculative_config=custom("FakeOracle", wrong_every=4))
    engine.add(make_request("a", prompt, max_tokens=20, kv_source=KVSource.TRANSFER))
    resumed = make_request("r", prompt, max_tokens=20, resumed_token_ids=tuple(right[:7]))
    engine.add(resumed)
    run = drain(engine, until=lambda run: bool(run.admitted("a")))
    if first_token:
        blocks = run.admitted("a")[0].tables[0]
        source, target = (e._parts.arena.blocks for e in (sender, engine))
        target[list(blocks)] = source[: len(blocks)]
        engine.complete_transfer("a", right[0])
    else:
        engine.fail_transfer("a")
    run = drain(engine, run)
    assert run.tokens("a") == right[first_token:]
    assert run.tokens("r") == right[7:]
    assert sum(e.num_accepted_tokens for e in run.new_tokens("a")) > 8


def test_drawn_drafts_leave_the_distribution_as_it_is() -> None:
    """At a temperature that makes 8 tokens equally likely; the draft prefers some, never one."""
    num = len(Drawn.probs)
    engine = make_engine(speculative_config=custom("Drawn", num=3))
    requests = [
        make_request(
            str(seed),
            [1, 2, 3],
            max_tokens=4,
            temperature=1e6,
            seed=seed,
            allowed_token_ids=tuple(range(num)),
        )
        for seed in range(400)
    ]
    run = generate(engine, *requests)
    counts = np.zeros((4, num))
    for request in requests:
        for place, token_id in enumerate(run.tokens(request.request_id)):
            counts[place, token_id] += 1
    assert num < VOCAB_SIZE
    chi_square = ((counts - 400 / num) ** 2 / (400 / num)).sum(axis=-1)
    assert (chi_square < 29.9).all()  # 7 degrees of freedom, once in 10,000
    counters = engine.stats().counters
    drafted = counters["spec_decode_num_draft_tokens"]
    accepted = counters["spec_decode_num_accepted_tokens"]
    # sum of min(p, q) is the chance of the first to be accepted.
    assert 0.5 < engine.stats().accepted_per_pos[0] / counters["spec_decode_num_drafts"] < 0.8
    assert 0 < accepted < drafted


@pytest.mark.parametrize("kv_cache_dtype", ["int8", "fp8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_narrow_kv_and_narrow_weights_change_nothing(
    checkpoint: Path, dtype: str, kv_cache_dtype: str
) -> None:
    """A step with drafts gives the tokens that steps of one token give."""
    loaded: LoadedModel = load_model(checkpoint, dtype=dtype)
    settings = {"kv_cache_dtype": kv_cache_dtype, "block_size": 16}
    requests = asked(max_tokens=12)
    told = answers(make_engine(loaded, **settings), requests)
    script = {name: answer[0] for name, answer in told.items()}
    config = custom("Scripted", answers=script, wrong_every=4)
    assert answers(make_engine(loaded, speculative_config=config, **settings), requests) == told


def test_llm_takes_a_mapping(checkpoint: Path) -> None:
    sampling = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
    told = []
    for speculative in (
        None,
        {"method": "suffix"},
        {"method": "ngram", "num_speculative_tokens": 3},
    ):
        llm = LLM(checkpoint, num_blocks=64, speculative_config=speculative)
        outputs = llm.generate([LOOPING, [5, 6]], replace(sampling, temperature=0.7, seed=1), n=2)
        told.append([answer.token_ids for output in outputs for answer in output.outputs])
        llm.close()
    assert told[0] == told[1] == told[2]
