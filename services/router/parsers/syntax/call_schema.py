"""The JSON Schema of an answer that consists of calls.

All formats use this schema: in many models the marks of calls are special tokens, which no grammar
of texts can require, and every grammar library follows a JSON Schema exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from services.router.parsers.base import ToolSpec

#: Keys whose values are data, not schemas.
_DATA_KEYS = frozenset({"const", "default", "enum", "examples"})


def list_of_calls(tools: Sequence[ToolSpec], *, arguments: str, parallel: bool) -> dict[str, Any]:
    """Return the schema of a list of calls.

    The list has at least one call; exactly one unless `parallel`. `arguments`: the format's key for
    them.
    """
    places = {f"tool_{i}": tool for i, tool in enumerate(tools)}
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.name},
                arguments: {"$ref": f"#/$defs/{place}"},
            },
            "required": ["name", arguments],
            "additionalProperties": False,
        }
        for place, tool in places.items()
    ]
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": _one_of(calls)}
    if not parallel:
        schema["maxItems"] = 1
    schema["$defs"] = {
        place: moved_schema(tool.parameters, f"#/$defs/{place}") for place, tool in places.items()
    }
    return schema


def moved_schema(schema: Any, place: str) -> Any:
    """Return `schema` as a part of another one, at `place`, with its references adapted."""
    if isinstance(schema, list):
        return [moved_schema(item, place) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _moved(key, value, place) for key, value in schema.items()}


def _moved(key: str, value: Any, place: str) -> Any:
    if key in _DATA_KEYS:
        return value
    if key == "$ref" and isinstance(value, str) and value.startswith("#"):
        return place + value[1:]
    return moved_schema(value, place)


def _one_of(schemas: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
