"""The options `structured_outputs` and `response_format` as a message of the contract."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from baton_client import contract
from baton_client.errors import invalid

if TYPE_CHECKING:
    from collections.abc import Mapping

_KINDS = {
    "json": "GRAMMAR_KIND_JSON_SCHEMA",
    "json_object": "GRAMMAR_KIND_JSON_OBJECT",
    "regex": "GRAMMAR_KIND_REGEX",
    "choice": "GRAMMAR_KIND_CHOICE",
    "grammar": "GRAMMAR_KIND_EBNF",
    "structural_tag": "GRAMMAR_KIND_STRUCTURAL_TAG",
}
_NAME = "structured_outputs"
_FORMAT = "response_format"


def grammar_message(value: Mapping[str, Any]) -> contract.Grammar:
    """`value` has one key: what kind of grammar its value is. Beside it, `disable_any_whitespace`
    keeps JSON on one line. The server checks the grammar.

    Raises:
        InvalidRequestError: it has another number of keys, or one that there is not.
    """
    given = dict(value)
    is_dense = bool(given.pop("disable_any_whitespace", False))
    if len(given) != 1:
        raise invalid(_NAME, f"it must hold exactly one of {', '.join(_KINDS)}")
    [(kind, content)] = given.items()
    if kind not in _KINDS:
        raise invalid(_NAME, f"there is no {kind!r}, only {', '.join(_KINDS)}")
    return _grammar(
        kind, content, f"{_NAME}.{kind}", any_whitespace=None if not is_dense else False
    )


def response_format_message(value: Mapping[str, Any]) -> contract.Grammar | None:
    """OpenAI's field; None if any text will do.

    Raises:
        InvalidRequestError: there is no such type, or it has no schema.
    """
    match value.get("type"):
        case "text":
            return None
        case "json_object":
            return _grammar("json_object", None, _FORMAT)
        case "json_schema":
            named = value.get("json_schema")
            if not isinstance(named, dict) or not isinstance(named.get("schema"), dict):
                raise invalid(_FORMAT, "json_schema must be an object with a schema")
            strict = False if named.get("strict") is False else None
            param = f"{_FORMAT}.json_schema.schema"
            return _grammar("json", named["schema"], param, strict=strict)
    raise invalid(_FORMAT, "its type must be text, json_object or json_schema")


def _grammar(kind: str, content: Any, param: str, **flags: bool | None) -> contract.Grammar:
    fields: dict[str, Any] = {"kind": _KINDS[kind], "param": param, **flags}
    if kind != "json_object":
        is_text = isinstance(content, str)
        fields["text"] = content if is_text else json.dumps(content, ensure_ascii=False)
    return contract.Grammar(**fields)
