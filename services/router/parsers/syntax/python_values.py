"""Values in Python's syntax, as JSON. Parsed, never evaluated."""

from __future__ import annotations

import ast
import json
import warnings
from typing import Any

from services.router.parsers.syntax.machine import MalformedError, check_text

#: JSON words that models write among Python's words.
_JSON_WORDS = {"true": True, "false": False, "null": None}
_PARSE_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)


def keyword_arguments(source: str) -> str:
    """Return the JSON object of "(a=1, b='x')".

    Raises:
        MalformedError: the text is no list of keyword arguments, or a value is no literal.
    """
    call = _parsed(f"f{source}")
    if not isinstance(call, ast.Call) or call.args:
        raise MalformedError
    values: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in values:
            raise MalformedError
        values[keyword.arg] = _literal(keyword.value)
    return _dumped(values)


def literal(source: str) -> str:
    """Return the JSON of a literal such as "{'a': [1, None]}".

    Raises:
        MalformedError: the text is none.
    """
    return _dumped(_literal(_parsed(source)))


def _parsed(source: str) -> ast.expr:
    try:
        with warnings.catch_warnings():
            # Warnings about escapes that Python does not know: the text is not a program.
            warnings.simplefilter("ignore")
            return ast.parse(source, mode="eval").body
    except _PARSE_ERRORS as error:
        raise MalformedError from error


def _dumped(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except _PARSE_ERRORS as error:
        raise MalformedError from error
    check_text(text)
    return text


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() | int() | float() | None as value):
            return value
        case ast.Name(id=word) if word in _JSON_WORDS:
            return _JSON_WORDS[word]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=ast.Constant(value=number)):
            if isinstance(number, int | float) and not isinstance(number, bool):
                return -number if isinstance(sign, ast.USub) else number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _literal(value) for key, value in zip(keys, values, strict=True)}
    raise MalformedError


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise MalformedError
