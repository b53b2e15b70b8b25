"""Formats in structural tags that are Baton's own, as the router writes them for calls.

`{"type": "json_string", "grammar": …, "param": …}`: what stands between the quotes of a JSON string
whose content is a text of the grammar, in Lark or in GBNF; errors name the client's field `param`.
`{"type": "exact_json_schema", "json_schema": …}`: JSON that fits the schema as exactly as an answer
of its own would.
"""

from __future__ import annotations

import json
import re
from typing import Any

import xgrammar

from shared.engine.grammar.backends.json_schema_map import map_schemas
from shared.engine.grammar.backends.json_schema_strings import exact_strings
from shared.engine.grammar.backends.json_text import UnknownNotationError, in_json_string
from shared.engine.grammar.backends.lark import is_lark
from shared.errors import InvalidRequestError, UnsupportedError

#: What the library's printed grammars do not tell apart: a class that begins with ^ looks like its
#: opposite, and NUL ends a text.
_UNPRINTABLE = re.compile(r"\[\\(\^|x5[eE]|u005[eE])|\\(0|x00|u0000)|\x00")
#: Most blanks and line ends in a row within the arguments of a call.
_MAX_WHITESPACE = 1


def expand_own(text: str) -> str:
    """Return a structural tag with the library's formats in place of Baton's own.

    Raises:
        InvalidRequestError: a grammar is wrong; `param` is its own.
        UnsupportedError: a grammar says something that no JSON string can be held to.
        InexactPatternError: a pattern that the library would follow only approximately.
    """
    return json.dumps(_expanded(json.loads(text)), ensure_ascii=False)


def _expanded(value: Any) -> Any:
    if isinstance(value, list):
        return [_expanded(one) for one in value]
    if not isinstance(value, dict):
        return value
    match value.get("type"):
        case "json_string":
            return {"type": "grammar", "grammar": _string_grammar(value)}
        case "exact_json_schema":
            return {
                "type": "json_schema",
                "json_schema": map_schemas(value["json_schema"], exact_strings),
                "max_whitespace_cnt": _MAX_WHITESPACE,
            }
        case "json_schema":
            return value
    return {key: _expanded(one) for key, one in value.items()}


def _string_grammar(value: dict[str, Any]) -> str:
    text, param = str(value.get("grammar")), str(value.get("param") or "structural_tag")
    if found := _UNPRINTABLE.search(text):
        message = (
            f"{param}: {found[0]!r} is not supported in a call's text: no NUL, and no class of "
            "characters that begins with an escaped ^"
        )
        raise UnsupportedError(message, param=param)
    try:
        make = xgrammar.Grammar.from_lark if is_lark(text) else xgrammar.Grammar.from_ebnf
        printed = str(make(text))
    # The library raises RuntimeError, ValueError and classes of its own.
    except Exception as error:
        reason = (str(error).strip().splitlines() or [repr(error)])[0]
        raise InvalidRequestError(f"{param}: {reason}", param=param) from error
    try:
        return in_json_string(printed)
    except UnknownNotationError as error:
        message = (
            f"{param}: a call's text cannot be held to {str(error)!r}: use rules and terminals"
        )
        raise UnsupportedError(message, param=param) from error
