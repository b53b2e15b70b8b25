"""What answers are held to that must call: each such answer is read completely."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest

from services.router.parsers.base import ToolSpec
from services.router.parsers.call_grammar import moved_schema
from services.router.parsers.find import TOOL_FORMATS
from tests.suites.text_parsers import Said, read

TREE = {
    "type": "object",
    "properties": {"node": {"$ref": "#/$defs/node"}, "other": {"$ref": "#"}},
    "required": ["node"],
    "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
}
SPECS = (
    ToolSpec(name="search", parameters={"type": "object", "required": ["q"]}),
    ToolSpec(name="tree", parameters=TREE),
)
NAMES = frozenset({"search", "tree"})
CALLS = [("search", '{"q": 1}'), ("tree", '{"node": {"next": {}}}')]


def written(name: str, calls: list[tuple[str, str]]) -> str:
    """The answer as the grammar of the format `name` has it; of tags, put together from its own
    words."""
    grammar = TOOL_FORMATS[name].schema_for(SPECS, parallel=len(calls) > 1)
    if grammar.kind == "json_schema":
        key = "arguments" if name == "mistral" else "parameters"
        answer = [{"name": n, key: json.loads(arguments)} for n, arguments in calls]
        assert jsonschema_rs.is_valid(grammar.value, answer)
        return json.dumps(answer)
    parts = grammar.value["format"]
    tags = {spec.name: tag for spec, tag in zip(SPECS, parts["tags"], strict=True)}
    assert all(tag["content"]["json_schema"]["type"] == "object" for tag in tags.values())
    texts = [tags[n]["begin"] + arguments + tags[n]["end"] for n, arguments in calls]
    return str(parts["separator"].join(texts))


@pytest.mark.parametrize("name", TOOL_FORMATS)
@pytest.mark.parametrize("calls", [CALLS[:1], CALLS])
def test_forced_answers_are_calls_and_nothing_else(name: str, calls: list[tuple[str, str]]) -> None:
    parser = TOOL_FORMATS[name].forced_parser(NAMES)
    assert read(parser, written(name, calls)) == Said("", "", calls)


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_one_call_is_one_call(name: str) -> None:
    one, many = (TOOL_FORMATS[name].schema_for(SPECS, parallel=p) for p in (False, True))
    if one.kind == "json_schema":
        assert (one.value["maxItems"], "maxItems" in many.value) == (1, False)
    else:
        assert one.value["format"]["stop_after_first"] is True
        assert many.value["format"]["stop_after_first"] is False


@pytest.mark.parametrize(
    ("call", "is_valid"),
    [
        ({"name": "tree", "parameters": {"node": {"next": {"next": {}}}}}, True),
        ({"name": "tree", "parameters": {"node": {}, "other": {"node": {}}}}, True),
        ({"name": "tree", "parameters": {"node": {"next": 5}}}, False),
        ({"name": "tree", "parameters": {"node": {}, "other": {}}}, False),
        ({"name": "search", "parameters": {}}, False),
        ({"name": "launch", "parameters": {}}, False),
        ({"name": "search", "parameters": {"q": 1}, "more": 1}, False),
    ],
)
def test_references_of_a_tool_stay_within_it(call: Any, is_valid: bool) -> None:
    schema = TOOL_FORMATS["json"].schema_for(SPECS, parallel=True).value
    assert jsonschema_rs.is_valid(schema, [call]) is is_valid
    assert not jsonschema_rs.is_valid(schema, [])


def test_data_in_a_schema_is_not_touched() -> None:
    schema = {"const": {"$ref": "#/a"}, "properties": {"$ref": {"$ref": "#/b"}}}
    assert moved_schema(schema, "#/x") == {
        "const": {"$ref": "#/a"},
        "properties": {"$ref": {"$ref": "#/x/b"}},
    }
