"""Refuses grammars that are wrong, or that no backend follows exactly, before they are compiled.

Router and workers ask the same. What is left to the backends: the syntax of EBNF and of structural
tags, and what only compiling shows. Needs no torch.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from shared.errors import InvalidRequestError
from shared.request.grammar.json_schema import check_schema
from shared.request.grammar.regex import check_regex
from shared.request.grammar.spec import GrammarKind

if TYPE_CHECKING:
    from shared.request.grammar.spec import GrammarSpec

#: Of a spec's text. Compiling takes time and memory in proportion, or worse.
MAX_CHARS = 128 * 1024
MAX_CHOICES = 4096


def check_spec(spec: GrammarSpec) -> None:
    """Raise InvalidRequestError, or UnsupportedError, that says what is wrong where."""
    if len(spec.text) > MAX_CHARS:
        message = f"{spec.param} must have at most {MAX_CHARS} characters, not {len(spec.text)}"
        raise InvalidRequestError(message, param=spec.param)
    match spec.kind:
        case GrammarKind.JSON_SCHEMA:
            check_schema(_read_json(spec), param=spec.param)
        case GrammarKind.REGEX:
            check_regex(spec.text, param=spec.param)
        case GrammarKind.CHOICE:
            _check_choices(_read_json(spec), spec)
        case GrammarKind.EBNF:
            _require(bool(spec.text.strip()), spec, "is empty")
        case GrammarKind.STRUCTURAL_TAG:
            _require(isinstance(_read_json(spec), dict), spec, "must be a JSON object")
        case GrammarKind.JSON_OBJECT:
            pass


def _read_json(spec: GrammarSpec) -> Any:
    try:
        return json.loads(spec.text)
    except json.JSONDecodeError as error:
        message = f"{spec.param} is not valid JSON: {error}"
        raise InvalidRequestError(message, param=spec.param) from error
    except RecursionError:
        message = f"{spec.param} is nested too deeply"
        raise InvalidRequestError(message, param=spec.param) from None


def _check_choices(choices: Any, spec: GrammarSpec) -> None:
    is_list = isinstance(choices, list) and all(isinstance(one, str) for one in choices)
    _require(is_list, spec, "must be a list of strings")
    _require(0 < len(choices) <= MAX_CHOICES, spec, f"must hold 1 to {MAX_CHOICES} strings")
    _require(all(choices), spec, "must not hold an empty string")


def _require(condition: bool, spec: GrammarSpec, rule: str) -> None:
    if not condition:
        raise InvalidRequestError(f"{spec.param} {rule}", param=spec.param)
