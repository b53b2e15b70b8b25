"""Every parser on texts as models of its family write them, cut at every place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.parsers.find import REASONING_FORMATS, TOOL_FORMATS
from services.router.parsers.plan import ReadingPlan
from tests.fakes.text import tiny_tokenizer
from tests.suites.router.text_parsers import (
    AnswerParser,
    Said,
    check_every_byte,
    check_every_split,
    check_nothing_lost,
    read,
    tools_named,
)

FOLDER = Path(__file__).parent / "examples"
#: One property of each type.
TYPED = {
    "type": "object",
    "properties": {
        "s": {"type": "string"},
        "i": {"type": "integer"},
        "f": {"type": "number"},
        "b": {"type": "boolean"},
        "n": {"type": ["null", "integer"]},
        "m": {"anyOf": [{"type": "null"}, {"type": "string"}]},
        "l": {"type": "array"},
        "o": {"$ref": "#/$defs/object"},
        "e": {"enum": ["1", "2"]},
        "r": {"const": 7},
        "u": {"type": ["string", "integer"]},
    },
    "$defs": {"object": {"type": "object"}},
}
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
}
TOOLS = tools_named("get_time", "search", "get-news", get_weather=WEATHER, typed=TYPED)
TOKENIZER = tiny_tokenizer.load()


def examples(room: str) -> list[Any]:
    """(format's name, example) of every file, with readable ids."""
    return [
        pytest.param(path.stem, example, id=f"{path.stem}: {example['says']}")
        for path in sorted((FOLDER / room).glob("*.json"))
        for example in json.loads(path.read_text())
    ]


TOOL_EXAMPLES = examples("tools")
REASONING_EXAMPLES = examples("reasoning")
#: Characters of texts that are short enough for what takes the square of the length.
SHORT = 90
SHORT_EXAMPLES = [example for example in TOOL_EXAMPLES if len(example.values[1]["text"]) < SHORT]
TOOL_NAMES = sorted({example.values[0] for example in TOOL_EXAMPLES})


@pytest.mark.parametrize(("name", "example"), TOOL_EXAMPLES)
def test_calls_are_found_wherever_the_text_is_cut(name: str, example: Any) -> None:
    def new_parser() -> Any:
        return TOOL_FORMATS[name].parser(TOOLS)

    said = check_every_split(new_parser, example["text"])
    calls = [(call["name"], call["arguments"]) for call in example["calls"]]
    assert said == Said(example["content"], "", calls)
    if len(example["text"]) < SHORT:
        check_every_byte(new_parser, example["text"], TOKENIZER)


@pytest.mark.parametrize(("name", "example"), REASONING_EXAMPLES)
def test_reasoning_is_found_wherever_the_text_is_cut(name: str, example: Any) -> None:
    def new_parser() -> Any:
        return REASONING_FORMATS[name].parser(example["prompt"])

    said = check_every_split(new_parser, example["text"])
    assert said == Said(example["content"], example["reasoning"])
    check_every_byte(new_parser, example["text"], TOKENIZER)


@pytest.mark.parametrize(("name", "example"), SHORT_EXAMPLES)
def test_calls_behind_reasoning_are_found_wherever_it_is_cut(name: str, example: Any) -> None:
    """Reasoning that speaks of calls makes none, and takes nothing from those behind it."""
    plan = ReadingPlan(
        tools=TOOL_FORMATS[name], offered=TOOLS, reasoning=REASONING_FORMATS["think"]
    )
    thought = "Or <tool_call>?"
    text = f"<think>\n{thought}\n</think>\n{example['text']}"
    said = check_every_split(lambda: AnswerParser(plan), text)
    # White space between the two belongs to neither.
    alone = read(TOOL_FORMATS[name].parser(TOOLS), [example["text"].lstrip()])
    assert said == Said(alone.content, thought, alone.calls)


@pytest.mark.parametrize(("name", "example"), SHORT_EXAMPLES)
def test_every_beginning_of_an_example_is_read_as_well(name: str, example: Any) -> None:
    """An answer may be cut off anywhere."""
    for place in range(len(example["text"])):
        text = example["text"][:place]
        said = read(TOOL_FORMATS[name].parser(TOOLS), [text])
        assert said == read(TOOL_FORMATS[name].parser(TOOLS), text)
        check_nothing_lost(text, said)


@pytest.mark.parametrize("name", TOOL_NAMES)
def test_pieces_are_given_out_as_soon_as_they_are_certain(name: str) -> None:
    """Text at once, and the arguments of a call while they come: JSON's all, of others at least
    the strings (but for Python's, which have to be complete to be read)."""
    parser = TOOL_FORMATS[name].parser(TOOLS)
    assert len(parser.feed("Hello there")) == 1
    text = json.loads((FOLDER / "tools" / f"{name}.json").read_text())[0]["text"]
    parser = TOOL_FORMATS[name].parser(TOOLS)
    fed = [bool(parser.feed(char)) for char in text]
    least = len('{"city": "Zürich", "days": 2}' if '"city":' in text else "Zürich")
    assert sum(fed) >= (1 if "(" in text else least)


@given(st.data())
def test_random_cuts_change_nothing(data: st.DataObject) -> None:
    name, example = data.draw(st.sampled_from([e.values for e in TOOL_EXAMPLES]))
    text = str(example["text"])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    bounds = zip([0, *cuts], [*cuts, len(text)], strict=True)
    pieces = [text[start:end] for start, end in bounds]
    parser = TOOL_FORMATS[str(name)].parser(TOOLS)
    assert read(parser, pieces) == read(TOOL_FORMATS[str(name)].parser(TOOLS), [text])


def test_ids_are_those_of_the_family() -> None:
    [event, *_] = (
        TOOL_FORMATS["hermes"].parser(TOOLS).feed('<tool_call>{"name": "search", "arguments": {}}')
    )
    assert event.id.startswith("call_")  # type: ignore[union-attr]  # a call
    [event, *_] = TOOL_FORMATS["mistral"].parser(TOOLS).feed("[TOOL_CALLS]search{}")
    assert len(event.id) == 9  # type: ignore[union-attr]  # a call
    assert event.id.isalnum()  # type: ignore[union-attr]  # a call
