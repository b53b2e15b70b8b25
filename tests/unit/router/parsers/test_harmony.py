"""The messages of gpt-oss: reasoning, calls and text, in turns."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from services.router.parsers.find import REASONING_FORMATS, TOOL_FORMATS
from services.router.parsers.plan import ReadingPlan
from shared.generation.params import GenerationParams
from shared.request.grammar.spec import GrammarKind, GrammarSpec, Thinking
from shared.text.answer_text import AnswerText
from shared.text.tokenizer import Tokenizer
from tests.fakes.text import tiny_tokenizer
from tests.suites.router.text_parsers import (
    AnswerParser,
    Said,
    check_every_split,
    read,
    tools_named,
)

START = "<|start|>assistant"
THOUGHT = "<|channel|>analysis<|message|>Where?<|end|>"
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": [1]}<|call|>'
FINAL = "<|channel|>final<|message|>2 < 3.\n<|return|>"


def plan(**fields: Any) -> ReadingPlan:
    given: dict[str, Any] = {
        "tools": TOOL_FORMATS["openai"],
        "offered": tools_named("f", "g"),
        "reasoning": REASONING_FORMATS["openai_gptoss"],
    }
    return ReadingPlan(**{**given, **fields})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (THOUGHT + START + FINAL, Said("2 < 3.\n", "Where?")),
        (FINAL, Said("2 < 3.\n")),
        (THOUGHT + START + CALL, Said("", "Where?", [("f", '{"a": [1]}')])),
        # The recipient may stand in the role, and the type may lack its token.
        (
            f"{THOUGHT}{START} to=functions.g<|channel|>commentary json<|message|>{{}}<|call|>",
            Said("", "Where?", [("g", "{}")]),
        ),
        (" to=functions.g<|channel|>commentary<|message|>{}<|call|>", Said(calls=[("g", "{}")])),
        # Models forget the namespace.
        ("<|channel|>commentary to=g<|message|>{}<|call|>", Said(calls=[("g", "{}")])),
        (
            "<|channel|>commentary to=functions.lacking<|message|>{}<|call|>",
            Said(calls=[("lacking", "{}")]),
        ),
        # Text for the user before calls, and reasoning between them.
        (
            f"<|channel|>commentary<|message|>Plan:<|end|>{START}{CALL}{START}{THOUGHT}{START}"
            f"{THOUGHT}{START}{CALL}",
            Said("Plan:", "Where?\nWhere?", [("f", '{"a": [1]}')] * 2),
        ),
        # Calls of the model's own tools are part of its reasoning.
        ("<|channel|>analysis to=python code<|message|>1+1<|call|>", Said("", "1+1")),
        ("<|channel|>commentary to=browser.open<|message|>{}<|call|>", Said("", "{}")),
        # Cut off, or without an end.
        (f"{THOUGHT}{START}<|channel|>comm", Said("", "Where?")),
        ("<|channel|>analysis<|message|>Where", Said("", "Where")),
        ("<|channel|>final<|message|>2 <", Said("2 <")),
        (CALL[:-9], Said(calls=[("f", '{"a": [1]')])),
        (THOUGHT[:-7] + START + FINAL, Said("", "Where?" + START + FINAL[:-10])),
        # Not the format.
        ("plain <b> text\n", Said("plain <b> text\n")),
    ],
)
def test_messages_are_read_wherever_they_are_cut(text: str, said: Said) -> None:
    assert check_every_split(lambda: AnswerParser(plan()), text) == said


def test_a_header_that_does_not_end_is_text() -> None:
    text = "<|channel|>" + "x" * 300
    assert read(AnswerParser(plan()), text) == read(AnswerParser(plan()), [text]) == Said(text)


def test_without_tools_a_call_is_text() -> None:
    bare = plan(tools=None, offered={})
    said = check_every_split(lambda: AnswerParser(bare), THOUGHT + START + CALL)
    assert said == Said('{"a": [1]}', "Where?")


def test_reasoning_can_be_left_out_and_calls_after_the_first() -> None:
    text = THOUGHT + START + CALL + START + CALL.replace("functions.f", "functions.g")
    said = read(AnswerParser(plan(include_reasoning=False, parallel=False)), [text])
    assert said == Said("", "", [("f", '{"a": [1]}')])


def test_a_forced_answer_may_follow_reasoning() -> None:
    for before, thought in ((THOUGHT, "Where?"), ("", "")):
        text = before + '[{"name": "f", "arguments": {"a": 1}}]'
        said = check_every_split(lambda: AnswerParser(plan(is_forced=True)), text)
        assert said == Said("", thought, [("f", '{"a": 1}')])


def test_calls_alone_can_be_read_without_the_reasoning_parser() -> None:
    said = read(AnswerParser(plan(reasoning=None)), [THOUGHT + START + CALL])
    assert said == Said("", "Where?", [("f", '{"a": [1]}')])


WORDS = (
    "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|constrain|>", " to=",
    "assistant", "analysis", "final", "commentary", "functions.f", "{}", "<|", "a", "\n",
)  # fmt: skip


@given(st.lists(st.sampled_from(WORDS), max_size=24), st.integers(0, 200))
def test_any_row_of_marks_is_read_the_same_in_any_pieces(words: list[str], place: int) -> None:
    text = "".join(words)
    whole = read(AnswerParser(plan()), [text])
    assert read(AnswerParser(plan()), words) == whole
    assert read(AnswerParser(plan()), text) == whole
    assert read(AnswerParser(plan()), [text[:place], text[place:]]) == whole


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """It has the format's marks as special tokens, and one token for each other byte."""
    made = tiny_tokenizer.byte_level()
    marks = TOOL_FORMATS["openai"].special_tokens
    made.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    return Tokenizer(made, special_tokens={"eos_token": "<|return|>"})


def test_messages_are_read_wherever_their_tokens_are_cut(tokenizer: Tokenizer) -> None:
    asked = plan()
    ids = tokenizer.encode(THOUGHT + START + CALL.removesuffix("<|call|>"))
    shown = asked.shown_token_ids(tokenizer)
    for place in range(len(ids) + 1):
        text = AnswerText(tokenizer, shown_token_ids=shown)
        pieces = [text.feed(ids[:place]).text, text.feed(ids[place:], final=True).text]
        said = read(AnswerParser(asked), pieces)
        assert said == Said("", "Where?", [("f", '{"a": [1]}')]), place


def test_a_grammar_begins_behind_the_first_message(tokenizer: Tokenizer) -> None:
    params = GenerationParams(grammar=GrammarSpec(kind=GrammarKind.JSON_OBJECT))
    asked, held = plan(tools=None).hold(params, "<|start|>assistant", tokenizer)
    assert held.grammar is not None
    begin, end = tokenizer.token_id("<|channel|>"), tokenizer.token_id("<|end|>")
    assert held.grammar.thinking == Thinking(
        begin_token_id=begin or 0, end_token_id=end or 0, is_open=False
    )
    said = check_every_split(lambda: AnswerParser(asked), THOUGHT + '{"a": 1}')
    assert said == Said('{"a": 1}', "Where?")
