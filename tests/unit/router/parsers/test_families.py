"""Every family's calls as its chat template writes them, read back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.parsers.find import REASONING_FORMATS, TOOL_FORMATS
from services.router.parsers.formats.table import TOOL_ROWS
from services.router.parsers.plan import ReadingPlan
from services.router.parsers.reasoning.table import REASONING_ROWS
from tests.accounting.effort import examples
from tests.fakes.text.call_writers import WRITERS, Call, dumps
from tests.suites.router.text_parsers import (
    AnswerParser,
    Said,
    check_every_split,
    check_nothing_lost,
    read,
    tools_named,
)

#: Calls of these may only begin an answer.
UNMARKED = ("llama3_json", "json", "pythonic")
#: An answer is a row of messages. They have their own tests: test_harmony.py, test_messages.py.
MESSAGES = ("openai", "muse_glimmer", "inkling")
#: Formats whose calls stand in the text.
IN_TEXT = [name for name in WRITERS if name not in MESSAGES]
#: Text that is in no format's marks.
PLAIN = st.text(st.sampled_from("aZ é🙂\"'\\{}[](),:;=&\t1"), max_size=8)
VALUES = st.recursive(
    st.one_of(PLAIN, st.integers(-99, 99), st.booleans(), st.none(), st.just(-1.5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("kl"), inner, max_size=2)
    ),
    max_leaves=4,
)


def calls_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Call]]:
    keys = st.sampled_from(["city", "days", "x_1"])
    arguments = st.dictionaries(keys, values, max_size=3)
    names = st.sampled_from(["get_weather", "a.b-c"])
    return st.lists(st.tuples(names, arguments), min_size=1, max_size=3)


CALLS = calls_of(VALUES)
#: Nested values are plain text in this format: only texts that no other value has are told apart.
NESTED = st.recursive(
    st.one_of(st.integers(-99, 99), st.booleans(), st.sampled_from(["a", "É\n🙂", "x <b>"])),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3),
        st.dictionaries(st.sampled_from("kl"), inner, min_size=1, max_size=2),
    ),
    max_leaves=4,
)
TYPICAL: list[Call] = [
    ("get_weather", {"city": "Zürich", "days": 2}),
    ("get_time", {}),
    ("search", {"q": '"<b>[c\n\\', "tags": [{"y": None}], "ok": True}),
]


def tools_of(calls: list[Call]) -> Any:
    """The tools with schemas that say the types of these calls' arguments."""
    kinds = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array"}
    schemas: dict[str, Any] = {}
    for name, arguments in calls:
        properties = schemas.setdefault(name, {"type": "object", "properties": {}})["properties"]
        for key, value in arguments.items():
            kind = "null" if value is None else kinds.get(type(value), "object")
            properties.setdefault(key, {"anyOf": []})["anyOf"].append({"type": kind})
    return tools_named(**schemas)


def called(said: Said) -> list[Call]:
    return [(name, json.loads(arguments)) for name, arguments in said.calls]


def test_every_format_has_a_writer() -> None:
    assert [row.names[0] for row in TOOL_ROWS] == list(WRITERS)


@pytest.mark.parametrize("name", IN_TEXT)
def test_calls_are_read_wherever_the_text_is_cut(name: str) -> None:
    calls: list[Call] = [("f", {"a": "É<\n'", "b": [1]}), ("g", {})]
    begin = "" if name in UNMARKED else "I <b>\n"
    text = begin + WRITERS[name](calls)
    tools = tools_of(calls)
    said = check_every_split(lambda: TOOL_FORMATS[name].parser(tools), text)
    assert called(said) == calls
    assert said.content == begin.rstrip()


@pytest.mark.parametrize("name", WRITERS)
def test_whole_answers_are_read(name: str) -> None:
    text = WRITERS[name](TYPICAL)
    said = read(TOOL_FORMATS[name].parser(tools_of(TYPICAL)), [text])
    assert (called(said), said.content) == (TYPICAL, "")


@settings(max_examples=examples(60, 600))
@given(st.sampled_from(list(WRITERS)), st.data())
def test_random_calls_are_read_back(name: str, data: st.DataObject) -> None:
    calls = data.draw(calls_of(NESTED) if name == "minimax_m3" else CALLS)
    # Where arguments are plain text, one name has one type, or text would be taken for another.
    calls = [(f"{function}{i}", arguments) for i, (function, arguments) in enumerate(calls)]
    text = WRITERS[name](calls)
    place = data.draw(st.integers(0, len(text)))
    said = read(TOOL_FORMATS[name].parser(tools_of(calls)), [text[:place], text[place:]])
    assert called(said) == calls
    assert not said.content


@pytest.mark.parametrize("name", IN_TEXT)
def test_an_answer_may_be_cut_off_anywhere(name: str) -> None:
    text, tools = WRITERS[name](TYPICAL[:2]), tools_of(TYPICAL)
    # Formats are read by common code: with each, other places.
    for place in range(IN_TEXT.index(name) % 3, len(text), 3):
        said = read(TOOL_FORMATS[name].parser(tools), [text[:place]])
        check_nothing_lost(text[:place], said)
        assert [call for call, _ in said.calls] == ["get_weather", "get_time"][: len(said.calls)]
        for (_, arguments), (_, whole) in zip(said.calls, TYPICAL, strict=False):
            assert dumps(whole).startswith(arguments)


@pytest.mark.parametrize("name", WRITERS)
def test_arguments_arrive_while_they_are_written(name: str) -> None:
    text = WRITERS[name](TYPICAL[:1])
    parser = TOOL_FORMATS[name].parser(tools_of(TYPICAL))
    fed = sum(bool(parser.feed(char)) for char in text)
    # Python's have to be complete to be read. Elsewhere at least a string comes letter by letter.
    assert fed >= (1 if "(" in text else len("Zürich"))


@pytest.mark.parametrize("name", WRITERS)
def test_a_function_that_the_request_lacks_is_called_if_a_mark_says_so(name: str) -> None:
    text = WRITERS[name](TYPICAL[:1])
    said = read(TOOL_FORMATS[name].parser(tools_named("other")), [text])
    if name in (*UNMARKED, "xlam"):
        assert said == Said(text)
    else:
        assert called(said) == TYPICAL[:1]


@pytest.mark.parametrize("name", IN_TEXT)
def test_reasoning_one_call_and_no_more(name: str) -> None:
    plan = ReadingPlan(
        tools=TOOL_FORMATS[name],
        offered=tools_of(TYPICAL),
        reasoning=REASONING_FORMATS["think"],
        parallel=False,
    )
    thought = f"Perhaps {WRITERS[name](TYPICAL[:1])}?"
    said = read(AnswerParser(plan), f"<think>{thought}</think>\n\n{WRITERS[name](TYPICAL)}")
    assert called(said) == TYPICAL[:1]
    assert said.reasoning == thought
    assert said.content == ""


def test_ids_of_kimi_are_those_of_the_model() -> None:
    parser = TOOL_FORMATS["kimi_k2"].parser({})
    events = parser.feed(WRITERS["kimi_k2"](TYPICAL))
    ids = [event.id for event in events if hasattr(event, "id")]
    assert ids == ["functions.get_weather:0", "functions.get_time:1", "functions.search:2"]


#: A thought as each format of reasoning marks it.
THOUGHTS = {
    "openai_gptoss": "<|channel|>analysis<|message|>Hm?<|end|>",
    "mistral": "[THINK]Hm?[/THINK]",
    "seed_oss": "<seed:think>Hm?</seed:think>\n",
    "gemma4": "<|channel>thought\nHm?<channel|>",
    "muse_glimmer": " to=self<|message|>Hm?<|eom|>",
    "inkling": "<|content_thinking|>Hm?<|end_message|>",
    "kimi_k3": "<|open|>think<|sep|>Hm?<|close|>think<|sep|>\n",
    "plamo3": "<|plamo:begin_think:plamo|>Hm?<|plamo:end_think:plamo|>",
    "k2_horizon": "<ifm|think_fast>\nHm?\n</ifm|think_fast>\n",
    "minimax_m3": "<mm:think>Hm?</mm:think>",
    "hy_v3": "<think:opensource>Hm?</think:opensource>",
    "cohere_command4": "<|START_THINKING|>Hm?<|END_THINKING|>",
    "cohere_command3": "<|START_THINKING|>Hm?<|END_THINKING|>",
    "granite": "Here is my thought process: Hm? Here is my response: ",
    "hunyuan_a13b": "<think>\nHm?\n</think>\n",
    "ernie45": "Hm?\n</think>\n\n",
    "kimi_k2": "<think>Hm?</think>",
    "think": "<think>\nHm?\n</think>\n\n",
    "deepseek_r1": "Hm?\n</think>\n\n",
}


@pytest.mark.parametrize("reasoning", THOUGHTS)
@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "kimi_k2", "pythonic"])
def test_calls_follow_every_kind_of_reasoning(reasoning: str, name: str) -> None:
    rows = [row.names[0] for row in REASONING_ROWS]
    assert [*THOUGHTS, "minimax_m2_append_think"] == rows
    plan = ReadingPlan(
        tools=TOOL_FORMATS[name],
        offered=tools_of(TYPICAL),
        reasoning=REASONING_FORMATS[reasoning],
    )
    text = THOUGHTS[reasoning] + WRITERS[name](TYPICAL)
    said = read(AnswerParser(plan), text)
    assert (said.reasoning, called(said), said.content) == ("Hm?", TYPICAL, "")
    assert read(AnswerParser(plan), [text]) == said


@pytest.mark.parametrize("name", WRITERS)
def test_a_template_that_writes_these_calls_shows_their_format_and_no_other(name: str) -> None:
    # Headers that are in the templates of these families, and tell them from others.
    others = {"granite": "<|start_of_role|>", "openai": "<|channel|>analysis<|message|>"}
    template = others.get(name, "") + WRITERS[name](TYPICAL)
    shown = [row.names[0] for row in TOOL_ROWS if row.is_shown_by(template)]
    assert shown == ([] if name in (*UNMARKED, "xlam") else [name])
