"""Reasoning, calls and text of one answer together, and how it ends."""

from __future__ import annotations

import itertools

import pytest

from services.router.chat.whole import WholeAnswer
from services.router.parsers.events import (
    ContentDelta,
    Finish,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallBegin,
)
from services.router.parsers.find import REASONING_FORMATS, TOOL_FORMATS
from services.router.parsers.plan import ReadingPlan
from services.router.request.generation import AnswerPiece
from shared.request.answer import FinishReason
from tests.suites.router.text_parsers import tools_named

CALL = '<tool_call>{"name": "search", "arguments": {"q": 1}}</tool_call>'
THOUGHT = "<think>\nA <tool_call> may help.\n</think>\n\n"
PLAN = ReadingPlan(
    tools=TOOL_FORMATS["hermes"],
    offered=tools_named("search"),
    reasoning=REASONING_FORMATS["think"],
)


def answer(plan: ReadingPlan, *texts: str, reason: FinishReason = FinishReason.STOP) -> WholeAnswer:
    reader = plan.new_reader("")
    whole = WholeAnswer()
    for text in texts[:-1]:
        whole.add(reader.read(AnswerPiece(index=0, text=text)))
    whole.add(reader.read(AnswerPiece(index=0, text=texts[-1], finish_reason=reason)))
    return whole


def test_reasoning_that_speaks_of_calls_makes_none() -> None:
    text = THOUGHT + "Wait.\n" + CALL
    for pieces in ([text], text, [text, ""]):
        whole = answer(PLAN, *pieces)
        assert whole.reasoning == "A <tool_call> may help."
        assert whole.content == "Wait."
        assert [(call.name, call.arguments) for call in whole.calls] == [("search", '{"q": 1}')]
        assert whole.finish == Finish("tool_calls")


def test_reasoning_can_be_left_out() -> None:
    plan = ReadingPlan(reasoning=REASONING_FORMATS["think"], include_reasoning=False)
    whole = answer(plan, THOUGHT, "Yes.")
    assert (whole.reasoning, whole.content) == ("", "Yes.")


def test_calls_after_the_first_can_be_left_out() -> None:
    plan = ReadingPlan(tools=TOOL_FORMATS["hermes"], parallel=False)
    whole = answer(plan, CALL + CALL + "text", CALL)
    assert len(whole.calls) == 1
    assert whole.calls[0].arguments == '{"q": 1}'
    assert whole.content == "text"


@pytest.mark.parametrize(
    ("text", "reason", "expected"),
    [
        ("Hi", FinishReason.STOP, "stop"),
        (CALL, FinishReason.STOP, "tool_calls"),
        (CALL, FinishReason.LENGTH, "length"),
        ("<tool_call>no", FinishReason.STOP, "stop"),
    ],
)
def test_the_end_says_whether_there_were_calls(
    text: str, reason: FinishReason, expected: str
) -> None:
    finish = answer(PLAN, text, reason=reason).finish
    assert finish is not None
    assert finish.reason == expected


def test_answers_are_read_apart() -> None:
    reader = PLAN.new_reader("")
    texts = [CALL, "Hello"]
    wholes = [WholeAnswer(), WholeAnswer()]
    for chars in itertools.zip_longest(*texts, fillvalue=""):
        for index, char in enumerate(chars):
            wholes[index].add(reader.read(AnswerPiece(index=index, text=char)))
    assert len(wholes[0].calls) == 1
    assert wholes[0].content == ""
    assert (wholes[1].content, wholes[1].calls) == ("Hello", [])


def test_events_say_what_ended_the_answer() -> None:
    reader = ReadingPlan().new_reader("")
    last = AnswerPiece(index=0, text="a", finish_reason=FinishReason.STOP, stop_string="END")
    assert reader.read(last) == [ContentDelta("a"), Finish("stop", "END")]


def test_events_are_small_and_in_order() -> None:
    reader = PLAN.new_reader("")
    events = reader.read(AnswerPiece(index=0, text=THOUGHT + "Yes." + CALL))
    kinds = [type(event) for event in events]
    assert kinds == [ReasoningDelta, ContentDelta, ToolCallBegin, ToolCallArguments]
