"""The options `structured_outputs` and `response_format` as a message of the contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from baton_client import checks, contract
from baton_client.errors import invalid

if TYPE_CHECKING:
    from collections.abc import Callable

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


def grammar_message(value: Any) -> contract.Grammar:
    """Return the message of `value`, whose only key names the kind of grammar.

    `disable_any_whitespace` beside it keeps JSON on one line. The server checks the grammar.

    Raises:
        InvalidRequestError: it has another number of keys, an unknown one, or a value of a wrong
            type.
    """
    found = checks.mapping(_NAME, value)
    given = {name: inner for name, inner in found.items() if inner is not None}
    dense = given.pop("disable_any_whitespace", False)
    is_dense = checks.flag(f"{_NAME}.disable_any_whitespace", dense)
    if not checks.flag(f"{_NAME}.json_object", given.get("json_object", True)):
        del given["json_object"]
    if len(given) != 1:
        raise invalid(_NAME, f"it must hold exactly one of {', '.join(_KINDS)}")
    [(kind, content)] = given.items()
    if kind not in _KINDS:
        raise invalid(_NAME, f"there is no {kind!r}, only {', '.join(_KINDS)}")
    return _grammar(kind, content, f"{_NAME}.{kind}", any_whitespace=False if is_dense else None)


def response_format_message(value: Any) -> contract.Grammar | None:
    """Return the message of OpenAI's field; None if any text is allowed.

    Raises:
        InvalidRequestError: there is no such type, or it has no schema.
    """
    wanted = checks.mapping(_FORMAT, value)
    match wanted.get("type"):
        case "text":
            return None
        case "json_object":
            return _grammar("json_object", None, _FORMAT)
        case "json_schema":
            named = wanted.get("json_schema")
            if not isinstance(named, Mapping) or not isinstance(named.get("schema"), Mapping):
                raise invalid(_FORMAT, "json_schema must be an object with a schema")
            strict = named.get("strict")
            if strict is not None:
                strict = checks.flag(f"{_FORMAT}.json_schema.strict", strict)
            param = f"{_FORMAT}.json_schema.schema"
            # True is the server's default.
            return _grammar("json", named["schema"], param, strict=strict and None)
    raise invalid(_FORMAT, "its type must be text, json_object or json_schema")


def _grammar(kind: str, content: Any, param: str, **flags: bool | None) -> contract.Grammar:
    written = _WRITTEN[kind](param, content)
    fields: dict[str, Any] = {"kind": _KINDS[kind], "text": written, "param": param, **flags}
    return contract.Grammar(**fields)


def _schema(param: str, value: Any) -> str:
    """Return a schema: an object, its JSON, or a boolean."""
    return (
        checks.as_json(param, value)
        if isinstance(value, bool)
        else checks.json_object(param, value)
    )


_WRITTEN: dict[str, Callable[[str, Any], str]] = {
    "json": _schema,
    "json_object": lambda _param, _content: "",
    "regex": checks.text,
    "choice": lambda param, content: checks.as_json(param, checks.texts(param, content)),
    "grammar": checks.text,
    "structural_tag": checks.json_object,
}
