"""What a body says about the shape of its answers: one thing at most, and in every spelling."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.router.openai.reading.structured import read_grammar
from services.router.openai.schema.completion import CompletionBody
from shared.errors import InvalidRequestError, UnsupportedError
from shared.generation.grammar import check_grammar
from shared.request.grammar.spec import GrammarKind, GrammarSpec

SCHEMA = {"type": "object", "properties": {"ü": {"type": "string"}}}
TEXT = json.dumps(SCHEMA, ensure_ascii=False)


def read(**fields: Any) -> GrammarSpec | None:
    return read_grammar(CompletionBody.model_validate_json(json.dumps({"prompt": "a"} | fields)))


def format_of(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA} | fields}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": None},
        {"response_format": {"type": "text"}},
        {"guided_json": None, "structured_outputs": None},
    ],
)
def test_nothing_is_asked_for(fields: dict[str, Any]) -> None:
    assert read(**fields) is None


@pytest.mark.parametrize(
    ("fields", "kind", "text", "param"),
    [
        ({"response_format": {"type": "json_object"}}, GrammarKind.JSON_OBJECT, "",
         "response_format"),
        ({"response_format": format_of()}, GrammarKind.JSON_SCHEMA, TEXT,
         "response_format.json_schema.schema"),
        ({"guided_json": SCHEMA}, GrammarKind.JSON_SCHEMA, TEXT, "guided_json"),
        ({"guided_json": TEXT}, GrammarKind.JSON_SCHEMA, TEXT, "guided_json"),
        ({"guided_regex": "a|b"}, GrammarKind.REGEX, "a|b", "guided_regex"),
        ({"guided_choice": ["a", "b"]}, GrammarKind.CHOICE, '["a", "b"]', "guided_choice"),
        ({"guided_grammar": 'root ::= "a"'}, GrammarKind.EBNF, 'root ::= "a"', "guided_grammar"),
        ({"structured_outputs": {"json": SCHEMA, "regex": None}}, GrammarKind.JSON_SCHEMA, TEXT,
         "structured_outputs.json"),
        ({"structured_outputs": {"json_object": True}}, GrammarKind.JSON_OBJECT, "",
         "structured_outputs.json_object"),
        ({"structured_outputs": {"regex": "a"}}, GrammarKind.REGEX, "a",
         "structured_outputs.regex"),
        ({"structured_outputs": {"choice": ["x"]}}, GrammarKind.CHOICE, '["x"]',
         "structured_outputs.choice"),
        ({"structured_outputs": {"grammar": "g"}}, GrammarKind.EBNF, "g",
         "structured_outputs.grammar"),
        ({"structured_outputs": {"structural_tag": '{"a": 1}'}}, GrammarKind.STRUCTURAL_TAG,
         '{"a": 1}', "structured_outputs.structural_tag"),
        ({"response_format": {"type": "structural_tag", "format": {}}},
         GrammarKind.STRUCTURAL_TAG, '{"type": "structural_tag", "format": {}}',
         "response_format"),
    ],
)  # fmt: skip
def test_every_spelling_is_read(
    fields: dict[str, Any], kind: GrammarKind, text: str, param: str
) -> None:
    spec = read(**fields)
    assert spec is not None
    assert (spec.kind, spec.text, spec.param) == (kind, text, param)


def test_schemas_are_closed_unless_the_client_says_otherwise() -> None:
    strict = [read(response_format=format_of(strict=value)) for value in (None, True, False)]
    assert [spec.strict for spec in strict if spec] == [True, True, False]


def test_layout_may_be_left_no_choice() -> None:
    spec = read(structured_outputs={"json": SCHEMA, "disable_any_whitespace": True})
    assert spec is not None
    assert not spec.any_whitespace


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": format_of(schema="a")}, "response_format.json_schema"),
        ({"response_format": format_of(strict=1)}, "response_format.json_schema.strict"),
        ({"guided_regex": 5}, "guided_regex"),
        ({"guided_choice": "a"}, "guided_choice"),
        ({"guided_json": "{"}, "guided_json"),
        ({"structured_outputs": []}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "disable_fallback": 1}},
         "structured_outputs.disable_fallback"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_regex"),
        ({"response_format": {"type": "json_object"}, "guided_choice": ["a"]}, "guided_choice"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read(**fields)
    assert caught.value.param == param
    assert not isinstance(caught.value, UnsupportedError)


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "xml"}},
        {"structured_outputs": {"xml": "a"}},
        {"structured_outputs": {"json": {}, "whitespace_pattern": " "}},
    ],
)
def test_what_there_is_not_is_not_passed_over(fields: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError):
        read(**fields)


def test_a_wrong_schema_is_found_before_any_worker_hears_of_it() -> None:
    wrong = {"type": "object", "properties": {"a": {"type": "strin"}}}
    for name in ("guided_json", "structured_outputs"):
        spec = read(**{name: wrong if name == "guided_json" else {"json": wrong}})
        for _ in range(2):
            with pytest.raises(InvalidRequestError, match=r"#/properties/a/type") as caught:
                check_grammar(spec)
            assert caught.value.param is not None
            assert caught.value.param.startswith(name)
