"""Answers that are rows of messages, of Muse Glimmer and Inkling. test_harmony.py has gpt-oss."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.parsers.find import REASONING_FORMATS, TOOL_FORMATS
from services.router.parsers.plan import ReadingPlan
from tests.suites.router.text_parsers import (
    AnswerParser,
    Said,
    check_every_split,
    read,
    tools_named,
)

SELF = " to=self<|message|>Where?<|eom|>"
MUSE_CALL = (
    ' to=f<|message|><atem:function_calls>\n<atem:invoke name="f">\n<atem:parameter name="a">[1]'
    "</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eom|>"
)
USER = " to=user<|message|>2 < 3.\n<|eot|>"
ASSISTANT = "<|start|>assistant"
THINKING = "<|content_thinking|>Where?<|end_message|>"
INVOKE = 'f<|content_invoke_tool_json|>{"name": "f", "args": {"a": [1]}}<|end_message|>'
TEXT = "<|content_text|>2 < 3.\n<|end_message|>"
MODEL = "<|message_model|>"


def plan(name: str, *tools: str) -> ReadingPlan:
    return ReadingPlan(
        tools=TOOL_FORMATS[name] if tools else None,
        offered=tools_named(*tools),
        reasoning=REASONING_FORMATS[name],
    )


CALLED = [("f", '{"a": [1]}')]
MUSE = [
    (SELF + ASSISTANT + USER, Said("2 < 3.\n", "Where?")),
    (USER, Said("2 < 3.\n")),
    ("<|message|>2 < 3.<|eot|>", Said("2 < 3.")),
    (SELF + ASSISTANT + MUSE_CALL, Said("", "Where?", CALLED)),
    (MUSE_CALL + ASSISTANT + SELF + ASSISTANT + MUSE_CALL, Said("", "Where?", CALLED * 2)),
    # Of a tool shown as f.*, models write f.f.
    (MUSE_CALL.replace('"f"', '"f.f"'), Said(calls=CALLED)),
    (MUSE_CALL.replace('"f"', '"g.h"'), Said(calls=[("g.h", '{"a": [1]}')])),
    # Calls in the reasoning and in the answer are words.
    (
        SELF.replace("Where?", '<atem:invoke name="f"></atem:invoke>'),
        Said("", '<atem:invoke name="f"></atem:invoke>'),
    ),
    # Cut off, or without an end.
    (f"{SELF}{ASSISTANT} to=us", Said("", "Where?")),
    (" to=self<|message|>Where", Said("", "Where")),
    (SELF.removesuffix("<|eom|>") + ASSISTANT + USER, Said("2 < 3.\n", "Where?")),
    (MUSE_CALL[: MUSE_CALL.index("]")], Said(calls=[("f", '{"a": [1')])),
    (" to=f<|message|>{}<|eom|>" + ASSISTANT + USER, Said("{}2 < 3.\n")),
    # Not the format.
    ("plain <b> text\n", Said("plain <b> text\n")),
]
INKLING = [
    (THINKING + MODEL + TEXT, Said("2 < 3.\n", "Where?")),
    (MODEL + TEXT, Said("2 < 3.\n")),
    (THINKING + MODEL + INVOKE, Said("", "Where?", CALLED)),
    (
        INVOKE + MODEL + THINKING + MODEL + INVOKE + MODEL + TEXT,
        Said("2 < 3.\n", "Where?", CALLED * 2),
    ),
    # Without the mark of a message, or its name; the text may end with the sampling's own mark.
    (THINKING + INVOKE.removeprefix("f"), Said("", "Where?", CALLED)),
    (TEXT.replace("<|end_message|>", "<|content_model_end_sampling|>"), Said("2 < 3.\n")),
    ("<|content_invoke_tool_text|>ls<|end_message|>", Said("ls")),
    # Cut off, or without an end.
    (f"{THINKING}{MODEL}f", Said("", "Where?")),
    ("<|content_thinking|>Where", Said("", "Where")),
    (INVOKE[: INVOKE.index("]")], Said(calls=[("f", '{"a": [1')])),
    # Not the format.
    ("f is plain <b> text\n", Said("f is plain <b> text\n")),
    ("f<|content_invoke_tool_json|>[1]", Said("f<|content_invoke_tool_json|>[1]")),
]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [("muse_glimmer", *case) for case in MUSE] + [("inkling", *case) for case in INKLING],
)
def test_messages_are_read_wherever_they_are_cut(name: str, text: str, said: Said) -> None:
    assert check_every_split(lambda: AnswerParser(plan(name, "f", "g")), text) == said
    without = read(AnswerParser(plan(name)), [text])
    assert (without.calls, without.reasoning) == ([], said.reasoning)


@pytest.mark.parametrize(
    ("name", "text"), [("muse_glimmer", MUSE_CALL), ("inkling", INVOKE)], ids=["muse", "inkling"]
)
def test_without_tools_a_call_is_text(name: str, text: str) -> None:
    said = check_every_split(lambda: AnswerParser(plan(name)), text)
    assert '"a"' in said.content
    assert not said.calls


@pytest.mark.parametrize(("name", "thought"), [("muse_glimmer", SELF), ("inkling", THINKING)])
def test_a_forced_answer_may_follow_reasoning(name: str, thought: str) -> None:
    forced = ReadingPlan(
        tools=TOOL_FORMATS[name],
        offered=tools_named("f"),
        reasoning=REASONING_FORMATS[name],
        is_forced=True,
    )
    text = thought + '[{"name": "f", "arguments": {"a": [1]}}]'
    assert check_every_split(lambda: AnswerParser(forced), text) == Said("", "Where?", CALLED)


WORDS = (
    "<|start|>", "<|message|>", "<|eom|>", "<|eot|>", " to=", "self", "user", "assistant", "f", "a",
    "<atem:function_calls>", '<atem:invoke name="f">', "</atem:invoke>", "<|message_model|>", "{}",
    "<|content_thinking|>", "<|content_text|>", "<|content_invoke_tool_json|>", "<|end_message|>",
    '{"name": "f"', ', "args": {}}', "<|", "\n",
)  # fmt: skip


@given(
    st.sampled_from(["muse_glimmer", "inkling"]),
    st.lists(st.sampled_from(WORDS), max_size=24),
    st.integers(0, 200),
)
def test_any_row_of_marks_is_read_the_same_in_any_pieces(
    name: str, words: list[str], place: int
) -> None:
    text = "".join(words)
    whole = read(AnswerParser(plan(name, "f")), [text])
    assert read(AnswerParser(plan(name, "f")), words) == whole
    assert read(AnswerParser(plan(name, "f")), text) == whole
    assert read(AnswerParser(plan(name, "f")), [text[:place], text[place:]]) == whole
