"""Grammars and speculation: what is guessed is cut to what is valid, and answers do not change."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from benchmarks.structured.conformance import make_cases, run
from benchmarks.structured.systems import ask_engine
from shared.engine.llm import LLM
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from shared.request.answer import FinishReason
from shared.request.grammar.spec import GrammarKind, GrammarSpec
from shared.request.sampling_params import SamplingParams
from tests.fakes.engine.proposers import custom

if TYPE_CHECKING:
    from pathlib import Path

PAIRS = GrammarSpec(kind=GrammarKind.REGEX, text=r"((ab|cd)-){12}")
NGRAM = json.dumps({"method": "ngram", "num_speculative_tokens": 4, "adaptive": False})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("speculated")
    write_random_checkpoint(path, CheckpointSpec(num_layers=1, vocab_size=300))
    return path


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_invalid_guesses_are_cut_before_they_are_computed(model: Path, temperature: float) -> None:
    sampling = SamplingParams(max_tokens=60, temperature=temperature, seed=2, grammar=PAIRS)
    plain = LLM(model, num_blocks=64)
    [want] = plain.generate("go", sampling)[0].outputs
    assert want.finish_reason is FinishReason.STOP
    [wrong] = plain.tokenizer.encode("z")
    # Every third guess is a token that the grammar never allows; all others are right.
    told = [wrong if i % 3 == 2 else token for i, token in enumerate(want.token_ids)]
    config = custom("Scripted", num=4, answers={"llm-0": told})
    fast = LLM(model, num_blocks=64, speculative_config=config)
    [got] = fast.generate("go", sampling)[0].outputs
    assert got == want
    counters = fast.engine.stats().counters
    assert counters["spec_decode_num_draft_tokens"] > 0
    assert counters["spec_decode_num_accepted_tokens"] == counters["spec_decode_num_draft_tokens"]
    assert counters["engine_steps"] < len(want.token_ids)
    for llm in (plain, fast):
        llm.close()


def test_json_is_the_same_and_valid_with_guesses(model: Path) -> None:
    plain = LLM(model, num_blocks=256)
    fast = LLM(model, num_blocks=256, speculative_config=NGRAM)
    tokenizer = plain.tokenizer
    cases = make_cases(range(8), tokenizer, max_tokens=120)
    want, got = list(ask_engine(plain)(cases)), list(ask_engine(fast)(cases))
    assert got == want
    result = run(cases, lambda _: got, tokenizer)
    assert result.faults == []
    assert result.num_finished >= 4
    assert fast.engine.stats().counters["spec_decode_num_accepted_tokens"] > 0
    # With too few blocks for all of them, sequences lose theirs in the middle of a grammar.
    tight = LLM(model, num_blocks=24, speculative_config=NGRAM)
    assert list(ask_engine(tight)(cases)) == want
    assert tight.engine.stats().counters["num_preemptions"] > 0
    for llm in (plain, fast, tight):
        llm.close()
