"""Reasoning ends where its budget does, whatever computes the answer and whatever stands beside."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from shared.engine.llm import LLM
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from shared.request.grammar.spec import GrammarKind, GrammarSpec, Thinking
from shared.request.sampling_params import SamplingParams
from shared.request.thinking_budget import ThinkingBudget

if TYPE_CHECKING:
    from collections.abc import Iterator

BEGIN, END = 60, 61
GREEDY = SamplingParams(max_tokens=12, temperature=0.0, logit_bias={END: -100.0})
PROMPT = tuple(range(5, 30))


def bounded(max_tokens: int, *, is_open: bool = True) -> dict[str, Any]:
    thinking = Thinking(begin_token_id=BEGIN, end_token_id=END, is_open=is_open)
    return {"thinking_budget": ThinkingBudget(max_tokens=max_tokens, thinking=thinking)}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = tmp_path_factory.mktemp("thinking")
    write_random_checkpoint(path, CheckpointSpec(num_layers=1, vocab_size=400))
    llm = LLM(path, dtype="float32", num_blocks=64)
    yield llm
    llm.close()


def answer(llm: LLM, sampling: SamplingParams, resumed: tuple[int, ...] = ()) -> list[int]:
    [output] = llm.generate([PROMPT], sampling, resumed=resumed)
    return list(output.outputs[0].token_ids)


@pytest.mark.parametrize("num", [0, 1, 5])
def test_the_end_comes_after_so_many_tokens_and_once(llm: LLM, num: int) -> None:
    plain = answer(llm, GREEDY)
    found = answer(llm, replace(GREEDY, **bounded(num)))
    assert found[: num + 1] == [*plain[:num], END]
    assert found.count(END) == 1, "the bias holds again behind it"
    for seen in (1, num, num + 1, num + 2):
        rest = answer(llm, replace(GREEDY, **bounded(num)), tuple(found[:seen]))
        assert rest == found[seen:], "as on a worker that takes over"


def test_reasoning_that_has_not_begun_has_no_end(llm: LLM) -> None:
    plain = answer(llm, GREEDY)
    assert plain[0] != BEGIN
    assert answer(llm, replace(GREEDY, **bounded(2, is_open=False))) == plain
    begins = replace(GREEDY, logit_bias={BEGIN: 100.0})
    found = answer(llm, replace(begins, **bounded(2, is_open=False)))
    assert found[:4] == [BEGIN, BEGIN, BEGIN, END]


def test_reasoning_that_ends_in_time_is_left_alone(llm: LLM) -> None:
    early = replace(GREEDY, logit_bias={END: 100.0})
    assert answer(llm, replace(early, **bounded(1))) == answer(llm, early)


def test_a_grammar_begins_behind_the_end(llm: LLM) -> None:
    budget = bounded(3)
    spec = GrammarSpec(kind=GrammarKind.CHOICE, text='["!", "#"]')
    held = replace(spec, thinking=budget["thinking_budget"].thinking)
    plain = answer(llm, GREEDY)
    found = answer(llm, replace(GREEDY, grammar=held, **budget))
    assert found[:4] == [*plain[:3], END]
    assert llm.tokenizer.decode(found[4:5]) in {"!", "#"}
