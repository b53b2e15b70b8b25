"""What answers are held to that must call: each such answer is read completely."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest

from services.router.parsers.base import ToolSpec
from services.router.parsers.find import TOOL_FORMATS
from services.router.parsers.syntax.call_schema import moved_schema
from tests.suites.router.text_parsers import Said, read

TREE = {
    "type": "object",
    "properties": {"node": {"$ref": "#/$defs/node"}, "other": {"$ref": "#"}},
    "required": ["node"],
    "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
}
SPECS = (
    ToolSpec(
        name="search",
        parameters={"type": "object", "properties": {"q": {"type": "integer"}}, "required": ["q"]},
    ),
    ToolSpec(name="tree", parameters=TREE),
)
TOOLS = {spec.name: spec for spec in SPECS}
CALLS = [("search", '{"q": 1}'), ("tree", '{"node": {"next": {}}}')]


def written(name: str, calls: list[tuple[str, str]]) -> str:
    """The answer as the schema of the format `name` has it."""
    schema = TOOL_FORMATS[name].schema_for(SPECS, parallel=len(calls) > 1)
    _, key = schema["items"]["anyOf"][0]["required"]
    answer = [{"name": n, key: json.loads(arguments)} for n, arguments in calls]
    assert jsonschema_rs.is_valid(schema, answer)
    return json.dumps(answer)


@pytest.mark.parametrize("name", TOOL_FORMATS)
@pytest.mark.parametrize("calls", [CALLS[:1], CALLS])
def test_forced_answers_are_calls_and_nothing_else(name: str, calls: list[tuple[str, str]]) -> None:
    parser = TOOL_FORMATS[name].forced_parser(TOOLS)
    assert read(parser, written(name, calls)) == Said("", "", calls)


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_one_call_is_one_call(name: str) -> None:
    one, many = (TOOL_FORMATS[name].schema_for(SPECS, parallel=p) for p in (False, True))
    assert (one["maxItems"], one["minItems"]) == (1, 1)
    assert "maxItems" not in many


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
    schema = TOOL_FORMATS["json"].schema_for(SPECS, parallel=True)
    assert jsonschema_rs.is_valid(schema, [call]) is is_valid
    assert not jsonschema_rs.is_valid(schema, [])


def test_data_in_a_schema_is_not_touched() -> None:
    schema = {"const": {"$ref": "#/a"}, "properties": {"$ref": {"$ref": "#/b"}}}
    assert moved_schema(schema, "#/x") == {
        "const": {"$ref": "#/a"},
        "properties": {"$ref": {"$ref": "#/x/b"}},
    }
