"""Which special tokens parsers must see, from the request to the text."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken

from services.router.parsers.find import REASONING_FORMATS, TOOL_FORMATS
from services.router.parsers.plan import ReadingPlan
from shared.text.answer_text import AnswerText
from shared.text.tokenizer import Tokenizer
from tests.fakes.text import tiny_tokenizer


def tokenizer_with(*special: str) -> Tokenizer:
    made = tiny_tokenizer.byte_level()
    made.add_special_tokens([AddedToken(text, special=True) for text in special])
    return Tokenizer(made, special_tokens={"eos_token": "<|im_end|>"})


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_the_tokens_of_the_format_are_shown_and_others_are_not(name: str) -> None:
    tool_format = TOOL_FORMATS[name]
    tokenizer = tokenizer_with(*tool_format.special_tokens)
    plan = ReadingPlan(tools=tool_format)
    shown = plan.shown_token_ids(tokenizer)
    assert shown == {tokenizer.token_id(text) for text in tool_format.special_tokens}
    ids = [tokenizer.token_id("<|im_start|>") or 0, *sorted(shown), tokenizer.encode("a")[0]]
    text = AnswerText(tokenizer, shown_token_ids=shown).feed(ids, final=True).text
    assert text == "".join(tool_format.special_tokens) + "a"
    assert AnswerText(tokenizer).feed(ids, final=True).text == "a"


def test_tokens_that_are_not_special_need_nothing() -> None:
    """<think> is an ordinary token of this tokenizer, as of most."""
    tokenizer = tiny_tokenizer.load()
    plan = ReadingPlan(reasoning=REASONING_FORMATS["think"])
    assert plan.shown_token_ids(tokenizer) == frozenset()
    assert ReadingPlan().is_plain
    assert not plan.is_plain
