"""What cannot be followed exactly is refused, by name and place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import InvalidRequestError, UnsupportedError
from shared.request.grammar.checks import MAX_CHARS, check_spec
from shared.request.grammar.spec import GrammarKind, GrammarSpec


def check(schema: Any) -> None:
    text = json.dumps(schema)
    check_spec(GrammarSpec(kind=GrammarKind.JSON_SCHEMA, text=text, param="p"))


def in_object(inner: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a/b": inner}}


TREE = {
    "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
    "$ref": "#/$defs/node",
}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        TREE,
        in_object({"type": ["string", "null"], "maxLength": 3}),
        in_object({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}),
        in_object({"type": "string", "enum": ["a", "b"]}),
        in_object({"oneOf": [{"type": "string"}, {"type": "integer"}]}),
        {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": kind}},
                    "required": ["kind"],
                }
                for kind in ("a", "b")
            ]
        },
        in_object({"allOf": [{"$ref": "#/$defs/x"}]}) | {"$defs": {"x": {"type": "number"}}},
        {"type": "array", "items": False, "prefixItems": [{"type": "number"}]},
        {"type": "array", "items": {"$ref": "#"}},
        in_object({"type": "string", "pattern": "^[a-z]{2,9}$"}),
        in_object({"type": "string", "pattern": r"[^a].\W\S\d\w\.[\w.\-]\x41\u00e9"}),
        in_object({"x-unknown": {"not": 1}, "title": "if"}),
        {"type": "object", "properties": {"not": {"type": "string"}}},
    ],
)
def test_what_can_be_followed_is_let_through(schema: Any) -> None:
    check(schema)


@pytest.mark.parametrize(
    ("inner", "name"),
    [
        ({"not": {}}, "not"),
        ({"if": {}, "then": {}}, "if"),
        ({"multipleOf": 2}, "multipleOf"),
        ({"uniqueItems": True}, "uniqueItems"),
        ({"contains": {}}, "contains"),
        ({"patternProperties": {}}, "patternProperties"),
        ({"minProperties": 1}, "minProperties"),
        ({"dependentRequired": {}}, "dependentRequired"),
        ({"unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"allOf": [{}, {}]}, "allOf"),
        ({"format": "iri"}, "format 'iri'"),
        ({"pattern": "a", "minLength": 2}, "pattern beside minLength"),
        ({"format": "date", "pattern": "a"}, "pattern beside format"),
        ({"type": "string", "pattern": "(?=a)"}, "group"),
        ({"type": "string", "pattern": r"\bx"}, "word boundary"),
        ({"type": "string", "pattern": '"'}, "a quote"),
        ({"type": "string", "pattern": r"a\\b"}, "a quote"),
        ({"type": "string", "pattern": r"a\s"}, "a control character"),
        ({"type": "string", "pattern": r"\x0a"}, "a control character"),
        ({"type": "string", "pattern": r"[ -~]"}, "a quote"),
        ({"type": "string", "maxLength": 10**9}, "maxLength over"),
        ({"type": "string", "enum": [1]}, "enum with '1'"),
        ({"const": "abc", "maxLength": 2}, "const with 'abc'"),
        ({"enum": []}, "enum"),
        ({"anyOf": [{"type": "string"}], "minLength": 2}, "anyOf beside minLength"),
        ({"anyOf": [{"type": "string"}], "type": "number"}, "anyOf beside a type"),
        ({"oneOf": [{"const": 1}, {"const": 1.0}]}, "only anyOf"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "only anyOf"),
        ({"oneOf": [{"maxLength": 1}, {"minLength": 1}]}, "only anyOf"),
        ({"$ref": "http://example.com/schema"}, "not in this schema"),
        ({"type": "object", "required": ["x"]}, "required 'x'"),
    ],
)
def test_what_cannot_be_followed_is_named_with_its_place(inner: Any, name: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        check(in_object(inner))
    message = str(caught.value)
    assert name in message
    assert "#/properties/a~1b" in message
    assert caught.value.param == "p"


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        ([], "must be a JSON object"),
        (in_object({"type": "text"}), "#/properties/a~1b/type"),
        (in_object({"minimum": "1"}), "#/properties/a~1b/minimum"),
        (in_object({"items": [{}]}), "#/properties/a~1b/items"),
        (in_object(False), "nothing is valid"),
        (in_object({"minLength": 3, "maxLength": 2}), "minLength is over maxLength"),
        (in_object({"pattern": "("}), "#/properties/a~1b/pattern"),
        (in_object({"$ref": "#/$defs/none"}), "there is no '#/$defs/none'"),
        ({"$ref": "#"}, "without end"),
        (
            {
                "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
                "$ref": "#/$defs/a",
            },
            "without end",
        ),
        (
            {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
            "without end",
        ),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "without end"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(schema: Any, where: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check(schema)
    assert where in str(caught.value)
    assert not isinstance(caught.value, UnsupportedError)


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (GrammarKind.JSON_SCHEMA, "{", "not valid JSON.*column 2"),
        (GrammarKind.JSON_SCHEMA, "[" * 100_000, "nested too deeply"),
        (GrammarKind.JSON_SCHEMA, " " * (MAX_CHARS + 1), "at most"),
        (GrammarKind.REGEX, "a)b", "position 1"),
        (GrammarKind.REGEX, r"(a)\1", "back reference at position 3"),
        (GrammarKind.REGEX, "a{1,100000}", "repeating"),
        (GrammarKind.REGEX, "a^b", "anchor"),
        (GrammarKind.CHOICE, "[]", "1 to"),
        (GrammarKind.CHOICE, '["a", 1]', "list of strings"),
        (GrammarKind.CHOICE, '["a", ""]', "empty"),
        (GrammarKind.EBNF, "  ", "empty"),
        (GrammarKind.STRUCTURAL_TAG, "[]", "JSON object"),
    ],
)
def test_other_kinds_are_checked_too(kind: GrammarKind, text: str, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason) as caught:
        check_spec(GrammarSpec(kind=kind, text=text, param="guided"))
    assert caught.value.param == "guided"


@pytest.mark.parametrize("text", [r"[\]^$]+", r"\d+\.\d*", "^(a|b)$", r"\$\^", "x{3}", "[^a]"])
def test_regular_languages_are_let_through(text: str) -> None:
    check_spec(GrammarSpec(kind=GrammarKind.REGEX, text=text))


NAMES = ("type", "enum", "const", "anyOf", "oneOf", "$ref", "properties", "required", "items",
         "minItems", "pattern", "format", "$defs", "not", "maxLength")  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.sampled_from(("string", "object", "#", "")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner),
    max_leaves=12,
)


@given(schema=VALUES)
def test_whatever_comes_is_let_through_or_refused(schema: Any) -> None:
    refusal = None
    try:
        check(schema)
    except InvalidRequestError as error:
        refusal = error
    assert refusal is None or refusal.param == "p"
