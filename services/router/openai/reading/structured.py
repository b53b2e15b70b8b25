"""The format of answers in a body: OpenAI's `response_format`, vLLM's `structured_outputs` and its
older `guided_*`. At most one of them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from services.router.openai.errors import FieldError
from shared.errors import UnsupportedError
from shared.generation.grammar import (
    choice_grammar,
    json_schema_grammar,
    structural_tag_grammar,
)
from shared.request.grammar.spec import GrammarKind, GrammarSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from services.router.openai.schema.base import GenerationBody

_GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
#: Fields of `structured_outputs` other than the constraint.
_OPTIONS = ("disable_any_whitespace", "disable_additional_properties", "disable_fallback")


def read_grammar(body: GenerationBody) -> GrammarSpec | None:
    """Return the constraint of `body`, or None.

    Raises:
        FieldError: it is wrong, or there are several.
        UnsupportedError: it asks for what is not offered.
    """
    specs = [*_response_format(body.response_format), *_structured_outputs(body.structured_outputs)]
    for name, kind in _GUIDED.items():
        value = getattr(body, name)
        if value is not None:
            specs.append(_constraint(kind, value, name))
    if len(specs) > 1:
        names = " and ".join(dict.fromkeys(spec.param for spec in specs))
        message = f"{names}: only one of them may set the format of the answer"
        raise FieldError(message, param=specs[1].param)
    return specs[0] if specs else None


def _response_format(value: Any) -> Iterator[GrammarSpec]:
    param = "response_format"
    if value is None:
        return
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        message = "response_format must be an object with a type"
        raise FieldError(message, param=param, code="invalid_type")
    match value["type"]:
        case "text":
            pass
        case "json_object":
            yield GrammarSpec(kind=GrammarKind.JSON_OBJECT, param=param)
        case "json_schema":
            yield _named_schema(value.get("json_schema"))
        case "structural_tag":
            yield structural_tag_grammar(value, param=param)
        case other:
            message = (
                f"response_format of type {other[:64]} is not supported; there are text, "
                "json_object, json_schema and structural_tag"
            )
            raise UnsupportedError(message, param=param)


def _named_schema(value: Any) -> GrammarSpec:
    param = "response_format.json_schema"
    if not isinstance(value, dict) or not isinstance(value.get("schema"), dict):
        message = f"{param} must be an object with a schema, which is an object"
        raise FieldError(message, param=param, code="invalid_type")
    strict = value.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise FieldError(
            f"{param}.strict must be true or false", param=f"{param}.strict", code="invalid_type"
        )
    return json_schema_grammar(value["schema"], strict=strict is not False, param=f"{param}.schema")


def _structured_outputs(value: Any) -> Iterator[GrammarSpec]:
    param = "structured_outputs"
    if value is None:
        return
    if not isinstance(value, dict):
        raise FieldError(f"{param} must be an object", param=param, code="invalid_type")
    given = {name: inner for name, inner in value.items() if inner is not None}
    if "whitespace_pattern" in given:
        name = f"{param}.whitespace_pattern"
        raise UnsupportedError(f"{name} is not supported", param=name)
    options = {name: _flag(given.pop(name, False), f"{param}.{name}") for name in _OPTIONS}
    if given.get("json_object") is False:
        del given["json_object"]
    if len(given) != 1:
        message = (
            f"{param} must hold exactly one of json, regex, choice, grammar, json_object and "
            f"structural_tag, not {len(given)} of them"
        )
        raise FieldError(message, param=param)
    [(kind, inner)] = given.items()
    yield _constraint(kind, inner, f"{param}.{kind[:64]}", options)


def _constraint(
    kind: str, value: Any, param: str, options: Mapping[str, bool] | None = None
) -> GrammarSpec:
    options = options or {}
    match kind:
        case "json":
            return json_schema_grammar(
                _schema(value, param),
                strict=True,
                any_whitespace=not options.get("disable_any_whitespace"),
                param=param,
            )
        case "json_object" if value is True:
            return GrammarSpec(
                kind=GrammarKind.JSON_OBJECT,
                any_whitespace=not options.get("disable_any_whitespace"),
                param=param,
            )
        case "regex" if isinstance(value, str) and value:
            return GrammarSpec(kind=GrammarKind.REGEX, text=value, param=param)
        case "grammar" if isinstance(value, str) and value:
            return GrammarSpec(kind=GrammarKind.EBNF, text=value, param=param)
        case "choice" if isinstance(value, list):
            return choice_grammar(value, param=param)
        case "structural_tag" if isinstance(value, str | dict):
            return structural_tag_grammar(_parsed(value, param), param=param)
        case "json_object" | "regex" | "grammar" | "choice" | "structural_tag":
            raise FieldError(f"{param}: {_RULES[kind]}", param=param, code="invalid_type")
    raise UnsupportedError(f"{param} is not supported", param=param)


_RULES = {
    "json_object": "must be true",
    "regex": "must be a string that is not empty",
    "grammar": "must be a string that is not empty",
    "choice": "must be a list of strings",
    "structural_tag": "must be an object, or a string that holds one in JSON",
}


def _schema(value: Any, param: str) -> Any:
    return _parsed(value, param) if isinstance(value, str) else value


def _parsed(value: Any, param: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        message = f"{param} is not valid JSON: {error}"
        raise FieldError(message, param=param, code="invalid_json") from error


def _flag(value: Any, param: str) -> bool:
    if not isinstance(value, bool):
        raise FieldError(f"{param} must be true or false", param=param, code="invalid_type")
    return value
