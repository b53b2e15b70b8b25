"""Whatever a model writes, in whatever pieces: it is read without an error and without a loss."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.v1 import router_pb2
from baton_client import contract
from baton_client.responses import join, read_piece
from services.router.grpc.answers import AnswerWriter
from services.router.parsers.find import REASONING_FORMATS, TOOL_FORMATS
from services.router.parsers.formats.table import TOOL_ROWS
from services.router.parsers.plan import ReadingPlan
from services.router.parsers.reasoning.table import REASONING_ROWS
from services.router.request.generation import AnswerPiece
from shared.request.answer import FinishReason
from tests.fuzz.cases import COUNTS, profile
from tests.suites.router.text_parsers import AnswerParser, check_nothing_lost, read, tools_named

if TYPE_CHECKING:
    from services.router.parsers.base import ReasoningFormat, ToolFormat

TOOLS = tools_named("f", "g-h")
#: What calls are made of, in all formats at once.
WORDS = (
    "<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]",
    "<|python_start|>", "<|python_end|>", "<think>", "</think>", "<", "[", "]", "{", "}", "(", ")",
    '{"name": "f"', '"name"', '"arguments"', '"parameters"', '"type"', ': {"a": 1}', "{}", '"f"',
    ":", ",", ";", '"', "'", "\\", "\\ud800", "null", "f", "g-h", "f(a=1", "a=", "=", "\n", " ",
    "é", "🙂", "\0", "\u2028", "1e999", "-1",
    " to=f", "<atem:function_calls>", '<atem:invoke name="f">', "</atem:invoke>", "<|message|>",
    "<|open|>call ", 'tool="f"', "<|open|>argument ", 'key="a"', "<|open|>json", "<|sep|>", "<a>",
)  # fmt: skip
TEXTS = st.one_of(
    st.lists(st.sampled_from(WORDS), max_size=40).map("".join),
    st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=3)), max_size=40).map("".join),
)
#: Marks of these are no text, wherever they are; the last one adds a mark to the text.
UNLIKE_TEXT = {
    "openai", "openai_gptoss", "muse_glimmer", "inkling", "kimi_k3", "minimax_m2_append_think",
}  # fmt: skip


@functools.cache
def words_of(*formats: ToolFormat | ReasoningFormat) -> st.SearchStrategy[str]:
    """Texts of the marks of these formats, and of what any calls are made of."""
    marks = [
        mark
        for known in formats
        for value in (*getattr(known, "__dict__", {}).values(), known.special_tokens)
        for mark in ([value] if isinstance(value, str) else value if is_texts(value) else [])
        if mark
    ]
    own = st.sampled_from([*marks, "f", "a", "b", "1", "\n", " ", "<", "{}", "assistant"])
    return st.one_of(TEXTS, st.lists(own, max_size=30).map("".join))


def is_texts(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(part, str) for part in value)


def tags_of(known: ReasoningFormat) -> tuple[str, ...]:
    return (*known.begins, *known.ends, *(known.answer or ())) if known.begins else ()  # type: ignore[attr-defined]  # a ThinkFormat


CUTS = st.lists(st.integers(0, 200), max_size=8)


def cut(text: str, cuts: list[int]) -> list[str]:
    places = sorted(min(place, len(text)) for place in cuts)
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@profile(250, 40_000)
@given(st.sampled_from([row.names[0] for row in TOOL_ROWS]), st.data(), CUTS, st.booleans())
def test_tool_calls(name: str, data: st.DataObject, cuts: list[int], is_forced: bool) -> None:
    known = TOOL_FORMATS[name]
    text = data.draw(words_of(known))
    new_parser = known.forced_parser if is_forced else known.parser
    said = read(new_parser(TOOLS), [text])
    assert read(new_parser(TOOLS), cut(text, cuts)) == said
    assert read(new_parser(TOOLS), text) == said
    if is_forced or name not in UNLIKE_TEXT:
        check_nothing_lost(text, said)
    for call_name, arguments in said.calls:
        assert call_name
        arguments.encode()
    COUNTS["parsers: tool calls"] += 3


@profile(120, 20_000)
@given(
    st.sampled_from([row.names[0] for row in REASONING_ROWS]),
    st.sampled_from(["", "<think>\n", "</think>\n\n"]),
    st.data(),
    CUTS,
)
def test_reasoning(name: str, prompt: str, data: st.DataObject, cuts: list[int]) -> None:
    known = REASONING_FORMATS[name]
    text = data.draw(words_of(known))
    said = read(known.parser(prompt), [text])
    assert read(known.parser(prompt), cut(text, cuts)) == said
    if name not in UNLIKE_TEXT:
        check_nothing_lost(text, said, tags=tags_of(known))
    COUNTS["parsers: reasoning"] += 2


@profile(120, 20_000)
@given(
    st.sampled_from([row.names[0] for row in REASONING_ROWS]),
    st.sampled_from([row.names[0] for row in TOOL_ROWS]),
    st.sampled_from(["", "<think>\n", "</think>\n\n"]),
    st.data(),
    CUTS,
    st.booleans(),
)
def test_answers_by_both_doors(
    reasoning: str, name: str, prompt: str, data: st.DataObject, cuts: list[int], is_forced: bool
) -> None:
    """Reasoning and calls together; over gRPC the SDK puts together what the reader says."""
    text = data.draw(words_of(TOOL_FORMATS[name], REASONING_FORMATS[reasoning]))
    plan = ReadingPlan(
        tools=TOOL_FORMATS[name],
        offered=TOOLS,
        reasoning=REASONING_FORMATS[reasoning],
        is_forced=is_forced,
    )
    said = read(AnswerParser(plan, prompt), [text])
    assert read(AnswerParser(plan, prompt), cut(text, cuts)) == said
    if not {reasoning, name} & UNLIKE_TEXT:
        check_nothing_lost(text, said, tags=tags_of(REASONING_FORMATS[reasoning]))
    writer = AnswerWriter(reader=plan.new_reader(prompt), reading=router_pb2.Reading.READING_DELTAS)
    pieces = [AnswerPiece(index=0, text=piece) for piece in cut(text, cuts)]
    pieces.append(AnswerPiece(index=0, finish_reason=FinishReason.STOP))
    written = [writer.write("r", piece, resumed=False) for piece in pieces]
    [answer] = join([read_piece(_through_the_wire(message)) for message in written]).answers
    calls = [(call.name, call.arguments) for call in answer.tool_calls]
    assert (answer.content, answer.reasoning, calls) == (said.content, said.reasoning, said.calls)
    assert answer.text == text
    assert (answer.finish_reason == "tool_calls") == bool(calls)
    COUNTS["parsers: answers"] += 3


def _through_the_wire(message: router_pb2.GenerateResponse) -> contract.GenerateResponse:
    return contract.GenerateResponse.FromString(message.SerializeToString())


REPEATED = (
    "<tool_call>", "<function=", "<|channel|>", "<|tool_calls_section_begin|>", "[TOOL_CALLS]",
    "[", "{", "(", "<", '{"name": "f"', "[f(a=", "\n", "é",
)  # fmt: skip


@pytest.mark.parametrize("name", [row.names[0] for row in TOOL_ROWS])
def test_what_is_repeated_for_ever_is_read_once(name: str) -> None:
    """What took the square of the length would not end within the time of a test."""
    for word in REPEATED:
        text = word * (20_000 // len(word))
        said = read(TOOL_FORMATS[name].parser(TOOLS), [text, *text[:100], text])
        if name not in UNLIKE_TEXT:
            check_nothing_lost(text + text[:100] + text, said)
