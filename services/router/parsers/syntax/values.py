"""Values of arguments that a model writes as plain text, as JSON of the type that is wanted."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from services.router.parsers.syntax.machine import MalformedError
from services.router.parsers.syntax.python_values import literal

if TYPE_CHECKING:
    from collections.abc import Mapping

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
NESTED = frozenset({"array", "object"})
#: Everything but strings, for values whose format says that they are none.
NO_STRING = NESTED | {"null", "boolean", "integer", "number"}
_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_WORDS = {
    "true": ("boolean", "true"),
    "false": ("boolean", "false"),
    "null": ("null", "null"),
    "none": ("null", "null"),
}
#: References within a schema that are followed.
_MAX_DEPTH = 16


def types_of(parameters: Mapping[str, Any], key: str) -> frozenset[str]:
    """Return the JSON types that the argument `key` may have; empty if the schema does not say."""
    properties = parameters.get("properties")
    schema = properties.get(key) if isinstance(properties, dict) else None
    return types_in(schema, parameters)


def types_in(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """Return the JSON types that a schema names; `root` is what its references mean."""
    return frozenset(kind for option in alternatives(schema, root) for kind in _types(option))


def alternatives(
    schema: Any, root: Mapping[str, Any], depth: int = _MAX_DEPTH
) -> list[Mapping[str, Any]]:
    """Return the schemas of which a value has to fit one, with references followed."""
    if not isinstance(schema, dict) or not depth:
        return []
    if not {"type", "enum", "const"}.isdisjoint(schema):
        return [schema]
    parts = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    if isinstance(parts, list):
        return [found for part in parts for found in alternatives(part, root, depth - 1)]
    if "$ref" in schema:
        return alternatives(_referenced(schema["$ref"], root), root, depth - 1)
    return [schema]


def as_json(text: str, types: frozenset[str]) -> str:
    """Return the value as JSON: of one of the types if it can be, otherwise as a string.

    Without types: as the JSON that it is, or as a string.
    """
    bare = text.strip()
    kind, value = _WORDS.get(bare.lower(), ("", ""))
    if kind in types:
        return value
    if types and not types - {"string"}:
        return string(text)
    found = _type_of(bare)
    if found and (not types or found in types or (found == "integer" and "number" in types)):
        return bare
    if found == "number" and "integer" in types and float(bare).is_integer():
        return bare
    if not found and types & NESTED and bare[:1] in "{[":
        # Some templates write objects and lists as Python does.
        with suppress(MalformedError):
            return literal(bare)
    return string(text)


def string(text: str) -> str:
    """Return a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def inside_string(text: str) -> str:
    """Return the text as it stands within a JSON string."""
    if text.isalnum():
        return text
    return string(text)[1:-1]


def _type_of(text: str) -> str:
    """Return the JSON type of a text; empty if it is no JSON."""
    if _NUMBER.fullmatch(text):
        return "integer" if text.lstrip("-").isdigit() else "number"
    try:
        return _value_type(json.loads(text, parse_constant=_refuse))
    except (ValueError, RecursionError):
        return ""


def _refuse(text: str) -> NoReturn:
    raise ValueError(text)


def _types(schema: Mapping[str, Any]) -> set[str]:
    given = schema.get("type")
    if isinstance(given, str):
        return {given}
    if isinstance(given, list):
        return {kind for kind in given if isinstance(kind, str)}
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return {_value_type(value) for value in values} if isinstance(values, list) else set()


def _value_type(value: Any) -> str:
    if isinstance(value, dict):
        return "object"
    return "array" if isinstance(value, list) else _NAMES.get(type(value), "string")


def _referenced(reference: Any, root: Mapping[str, Any]) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    place: Any = root
    for step in reference[2:].split("/"):
        place = place.get(step) if isinstance(place, dict) else None
    return place
