"""Whatever a model writes, in whatever pieces: it is read without an error and without a loss."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.v1 import router_pb2
from baton_client import contract
from baton_client.responses import join, read_piece
from services.router.grpc.answers import AnswerWriter
from services.router.parsers.find import REASONING_FORMATS, TOOL_FORMATS
from services.router.parsers.plan import ReadingPlan
from services.router.request.generation import AnswerPiece
from shared.request.answer import FinishReason
from tests.fuzz.cases import COUNTS, profile
from tests.suites.text_parsers import AnswerParser, check_nothing_lost, read, tools_named

TOOLS = tools_named("f", "g-h")
#: What calls are made of, in all formats at once.
WORDS = (
    "<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]",
    "<|python_start|>", "<|python_end|>", "<think>", "</think>", "<", "[", "]", "{", "}", "(", ")",
    '{"name": "f"', '"name"', '"arguments"', '"parameters"', '"type"', ': {"a": 1}', "{}", '"f"',
    ":", ",", ";", '"', "'", "\\", "\\ud800", "null", "f", "g-h", "f(a=1", "a=", "=", "\n", " ",
    "é", "🙂", "\0", "\u2028", "1e999", "-1",
)  # fmt: skip
TEXTS = st.one_of(
    st.lists(st.sampled_from(WORDS), max_size=40).map("".join),
    st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=3)), max_size=40).map("".join),
)
TAGS = ("<think>", "</think>")
CUTS = st.lists(st.integers(0, 200), max_size=8)


def cut(text: str, cuts: list[int]) -> list[str]:
    places = sorted(min(place, len(text)) for place in cuts)
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@profile(400, 40_000)
@given(st.sampled_from(sorted(TOOL_FORMATS)), TEXTS, CUTS, st.booleans())
def test_tool_calls(name: str, text: str, cuts: list[int], is_forced: bool) -> None:
    known = TOOL_FORMATS[name]
    new_parser = known.forced_parser if is_forced else known.parser
    said = read(new_parser(TOOLS), [text])
    assert read(new_parser(TOOLS), cut(text, cuts)) == said
    assert read(new_parser(TOOLS), text) == said
    check_nothing_lost(text, said)
    for call_name, arguments in said.calls:
        assert call_name
        arguments.encode()
    COUNTS["parsers: tool calls"] += 3


@profile(200, 20_000)
@given(
    st.sampled_from(sorted(REASONING_FORMATS)),
    st.sampled_from(["", "<think>\n", "</think>\n\n"]),
    TEXTS,
    CUTS,
)
def test_reasoning(name: str, prompt: str, text: str, cuts: list[int]) -> None:
    known = REASONING_FORMATS[name]
    said = read(known.parser(prompt), [text])
    assert read(known.parser(prompt), cut(text, cuts)) == said
    check_nothing_lost(text, said, tags=TAGS)
    COUNTS["parsers: reasoning"] += 2


@profile(200, 20_000)
@given(
    st.sampled_from(sorted(REASONING_FORMATS)),
    st.sampled_from(sorted(TOOL_FORMATS)),
    st.sampled_from(["", "<think>\n", "</think>\n\n"]),
    TEXTS,
    CUTS,
    st.booleans(),
)
def test_answers_by_both_doors(
    reasoning: str, name: str, prompt: str, text: str, cuts: list[int], is_forced: bool
) -> None:
    """Reasoning and calls together; over gRPC the SDK puts together what the reader says."""
    plan = ReadingPlan(
        tools=TOOL_FORMATS[name],
        offered=TOOLS,
        reasoning=REASONING_FORMATS[reasoning],
        is_forced=is_forced,
    )
    said = read(AnswerParser(plan, prompt), [text])
    assert read(AnswerParser(plan, prompt), cut(text, cuts)) == said
    check_nothing_lost(text, said, tags=TAGS)
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


REPEATED = ("<tool_call>", "[TOOL_CALLS]", "[", "{", "(", "<", '{"name": "f"', "[f(a=", "\n", "é")


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_what_is_repeated_for_ever_is_read_once(name: str) -> None:
    """What took the square of the length would not end within the time of a test."""
    for word in REPEATED:
        text = word * 10_000
        said = read(TOOL_FORMATS[name].parser(TOOLS), [text, *text[:100], text])
        check_nothing_lost(text + text[:100] + text, said)
