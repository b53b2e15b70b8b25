"""`thinking_token_budget` of a program's requests, and the marks that it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from baton import LLM, EngineArgs, SamplingParams
from cli.places import SHIPPED_MODEL
from shared.errors import ConfigError, UnsupportedError
from shared.offline.thinking import bound_thinking
from shared.request.grammar.spec import Thinking
from tests.fakes.text import tiny_tokenizer

if TYPE_CHECKING:
    from shared.text.tokenizer import Tokenizer

BUDGET = SamplingParams(thinking_token_budget=3).to_generation()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tiny_tokenizer.load()


def marks(tokenizer: Tokenizer, *, is_open: bool) -> Thinking:
    begin, end = tokenizer.token_id("<think>"), tokenizer.token_id("</think>")
    assert begin is not None
    assert end is not None
    return Thinking(begin_token_id=begin, end_token_id=end, is_open=is_open)


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [("Hi", False), ("Hi <think>\n", True), ("<think>\nHm</think>\nHi", False)],
)
def test_the_usual_marks_are_found_in_the_prompt(
    tokenizer: Tokenizer, prompt: str, *, is_open: bool
) -> None:
    bound = bound_thinking(BUDGET, (), tokenizer.encode(prompt), tokenizer)
    assert bound.thinking_token_budget == 3
    assert bound.thinking == marks(tokenizer, is_open=is_open)


def test_reasoning_that_has_ended_is_not_bound(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<think>\n\n</think>\n\n")
    assert bound_thinking(BUDGET, (), ids, tokenizer).thinking_token_budget is None


def test_no_budget_needs_no_marks(tokenizer: Tokenizer) -> None:
    for given in (None, -1):
        free = SamplingParams(thinking_token_budget=given).to_generation()
        assert bound_thinking(free, ("no", "token at all"), [1], tokenizer) == free


def test_marks_of_several_tokens_are_refused_by_name(tokenizer: Tokenizer) -> None:
    with pytest.raises(UnsupportedError, match=r"\[T\] and \[/T\] are not one token each"):
        bound_thinking(BUDGET, ("[T]", "[/T]"), [1], tokenizer)


@pytest.mark.parametrize("given", [{"reasoning_start_str": "a"}, {"reasoning_other": "a"}])
def test_half_a_config_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="--reasoning-config"):
        EngineArgs(SHIPPED_MODEL, reasoning_config=given).settings()


def test_an_answer_ends_its_reasoning_when_the_budget_is_spent() -> None:
    begin, end = "<|im_start|>", "<|im_end|>"
    config = {"reasoning_start_str": begin, "reasoning_end_str": end}
    sizes: dict[str, Any] = {"dtype": "float32", "max_model_len": 64, "num_blocks": 16}
    llm = LLM(model=SHIPPED_MODEL, reasoning_config=config, **sizes)
    try:
        tokenizer = llm.llm_engine.model.tokenizer
        end_id = tokenizer.token_id(end)
        prompt = {"prompt_token_ids": [*tokenizer.encode("def add"), tokenizer.token_id(begin)]}
        free = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, min_tokens=8)
        bound = SamplingParams(
            temperature=0, max_tokens=8, ignore_eos=True, thinking_token_budget=3
        )
        [first], [second] = llm.generate(prompt, free), llm.generate(prompt, bound)
    finally:
        llm.close()
    told, cut = first.outputs[0].token_ids, second.outputs[0].token_ids
    assert end_id not in told[:4]
    assert list(cut[:4]) == [*told[:3], end_id]
