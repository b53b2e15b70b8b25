"""The option `structured_outputs` as a message of the contract."""

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


def grammar_message(value: Mapping[str, Any]) -> Any:
    """`value` has one key: what kind of grammar its value is. The server checks the grammar.

    Raises:
        InvalidRequestError: it has another number of keys, or one that there is not.
    """
    if len(value) != 1:
        raise invalid(_NAME, f"it must hold exactly one of {', '.join(_KINDS)}")
    [(kind, content)] = value.items()
    if kind not in _KINDS:
        raise invalid(_NAME, f"there is no {kind!r}, only {', '.join(_KINDS)}")
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    fields: dict[str, Any] = {"kind": _KINDS[kind], "param": f"{_NAME}.{kind}"}
    if kind != "json_object":
        fields["text"] = text
    return contract.Grammar(**fields)
