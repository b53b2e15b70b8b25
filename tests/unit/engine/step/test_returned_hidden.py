"""Hidden states of an answer: one row per token, the one that its logits came from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from shared.engine.llm import LLM
from shared.engine.sequence.request import KVSource
from shared.errors import InvalidRequestError, UnsupportedError
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from shared.request.sampling_params import SamplingParams
from tests.fakes.engine.engines import (
    Run,
    drain,
    expected_tokens,
    generate,
    make_engine,
    make_request,
)
from tests.fakes.engine.model import context_hashes
from tests.fakes.model.hidden_states import check_rows, rows_of_transformers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shared.engine.engine import Engine

RNG = np.random.default_rng(4)
PROMPTS = [RNG.integers(0, 97, n).tolist() for n in (1, 4, 5, 37)]
ASKS = {"return_hidden_states": True}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}


def engine_with(**settings: Any) -> Engine:
    return make_engine(enable_return_hidden_states=True, **settings)


def rows(run: Run, name: str) -> list[float]:
    """The fake model's rows have one number."""
    parts = [row for event in run.new_tokens(name) for row in event.hidden_states]
    return np.frombuffer(b"".join(parts), "<f4").tolist()


def expected_rows(prompt: Sequence[int], tokens: Sequence[int]) -> list[float]:
    """What the fake model returns at the token before each of an answer's."""
    return list(context_hashes([*prompt, *tokens[:-1]]))[len(prompt) - 1 :]


@pytest.mark.usefixtures("step_mode")
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_batched_tokens": 9},
        {"num_blocks": 17},
        {"speculative_config": json.dumps({**NGRAM, "adaptive": False})},
    ],
    ids=["mixed", "chunked", "preempted", "guessed"],
)
def test_each_token_comes_with_the_row_before_it(settings: dict[str, Any]) -> None:
    engine = engine_with(**settings)
    num = 40 if "speculative_config" in settings else 8
    for turn in range(2):  # the second time prefixes are cached
        run = generate(
            engine,
            *(make_request(f"{turn}+{i}", p, max_tokens=num) for i, p in enumerate(PROMPTS)),
            *(
                make_request(f"{turn}-{i}", p, max_tokens=num, **ASKS, **scored)
                for i, (p, scored) in enumerate(
                    zip(PROMPTS, ({}, {"logprobs": 1}, {"min_tokens": 2}, {}), strict=True)
                )
            ),
        )
        for i, prompt in enumerate(PROMPTS):
            tokens = expected_tokens(prompt, num)
            assert run.tokens(f"{turn}+{i}") == run.tokens(f"{turn}-{i}") == tokens
            assert rows(run, f"{turn}-{i}") == expected_rows(prompt, tokens)
            assert not rows(run, f"{turn}+{i}")
    counters = engine.stats().counters
    if "num_blocks" in settings:
        assert counters["num_preemptions"]
    if "speculative_config" in settings:
        drafted = counters["spec_decode_num_draft_tokens"]
        assert 0 < counters["spec_decode_num_accepted_tokens"] < drafted


@pytest.mark.usefixtures("step_mode")
def test_a_row_of_the_runner_asks_for_its_present_sequence_alone() -> None:
    engine = engine_with(max_num_seqs=1)
    run = generate(engine, make_request("a", PROMPTS[2], **ASKS), make_request("b", PROMPTS[1]))
    assert len(rows(run, "a")) == 8
    assert not rows(run, "b")


@pytest.mark.usefixtures("step_mode")
def test_what_is_resumed_has_its_rows_already() -> None:
    prompt, tokens = PROMPTS[3], expected_tokens(PROMPTS[3], 8)
    resumed = make_request("rest", prompt, resumed_token_ids=tuple(tokens[:5]), **ASKS)
    run = generate(engine_with(), resumed)
    assert run.tokens("rest") == tokens[5:]
    assert rows(run, "rest") == expected_rows(prompt, tokens)[5:]


def test_a_hand_off_has_the_first_row_on_one_side_and_the_others_on_the_other() -> None:
    sender, receiver = engine_with(), engine_with()
    prompt, tokens = PROMPTS[3], expected_tokens(PROMPTS[3], 8)
    sent = generate(sender, make_request("s", prompt, hold_blocks=True, **ASKS))
    receiver.add(make_request("r", prompt, kv_source=KVSource.TRANSFER, **ASKS))
    run = drain(receiver, until=lambda run: bool(run.admitted("r")))
    memory, target = sender.kv_memory, receiver.kv_memory
    assert memory is not None
    assert target is not None
    [source], [place] = sent.admitted("s")[0].tables, run.admitted("r")[0].tables
    target.blocks[list(place)] = memory.blocks[list(source)]
    receiver.complete_transfer("r", first_token=sent.tokens("s")[0])
    drain(receiver, run)
    assert sent.tokens("s") + run.tokens("r") == tokens
    assert rows(sent, "s") + rows(run, "r") == expected_rows(prompt, tokens)


def test_they_are_refused_unless_they_are_allowed() -> None:
    with pytest.raises(UnsupportedError, match="--enable-return-hidden-states") as caught:
        generate(make_engine(), make_request("a", PROMPTS[1], **ASKS))
    assert caught.value.param == "return_hidden_states"


def test_an_answer_may_not_have_more_bytes_than_the_limit() -> None:
    engine = engine_with(hidden_states_bytes=4 * 8)
    with pytest.raises(InvalidRequestError, match="max_tokens to at most 8"):
        engine.add(make_request("a", PROMPTS[1], max_tokens=9, **ASKS))
    assert len(rows(generate(engine, make_request("b", PROMPTS[1], **ASKS)), "b")) == 8
    assert len(generate(engine, make_request("c", PROMPTS[1], max_tokens=9)).tokens("c")) == 9


def test_nothing_is_copied_for_those_who_do_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("rows were copied")

    monkeypatch.setattr("shared.engine.step.model_runner.returned_rows", fail)
    run = generate(engine_with(), make_request("a", PROMPTS[1]))
    assert run.tokens("a") == expected_tokens(PROMPTS[1], 8)
    asked = generate(engine_with(), make_request("b", PROMPTS[1], **ASKS))
    assert "rows were copied" in str(asked.failure("b"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("returned")
    write_random_checkpoint(path, CheckpointSpec(num_layers=2, vocab_size=300))
    return path


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_rows_are_those_of_transformers(checkpoint: Path, backend: str) -> None:
    oracle: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    llm = LLM(
        checkpoint,
        dtype="float32",
        attention_backend=backend,
        num_blocks=64,
        block_size=4,
        max_num_batched_tokens=16,
        max_num_seqs=16,
        enable_return_hidden_states=True,
        speculative_config={**NGRAM, "adaptive": False},
    )
    prompts = [[7, 8, 9] * 7, [7, 8, 9] * 7, [11, 12]]
    greedy = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True, **ASKS)
    drawn = SamplingParams(max_tokens=12, seed=3, ignore_eos=True, **ASKS)
    outputs = [*llm.generate(prompts, greedy), *llm.generate(prompts[1:], drawn, n=2)]
    assert llm.engine.stats().counters["spec_decode_num_accepted_tokens"]
    assert outputs[3].num_cached_tokens
    llm.close()
    for output in outputs:
        for answer in output.outputs:
            want = rows_of_transformers(oracle, output.prompt_token_ids, answer.token_ids)
            check_rows(answer.hidden_states, want)
