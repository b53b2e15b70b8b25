"""A JSON Schema with each of its schemas changed in the same way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: Keywords whose values hold schemas: by name, in a list, or one.
_BY_NAME = ("properties", "$defs", "definitions")
_IN_LIST = ("anyOf", "oneOf", "allOf", "prefixItems")
_ONE = ("items", "additionalProperties")


def map_schemas(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """A copy in which every schema is what `change` makes of it, the inner ones first.

    Only for schemas that `check_schema` lets through: others have keywords that are not looked at.
    """
    if not isinstance(schema, dict):
        return schema
    copy = dict(schema)
    for name in _BY_NAME:
        if name in copy:
            copy[name] = {key: map_schemas(one, change) for key, one in copy[name].items()}
    for name in _IN_LIST:
        if name in copy:
            copy[name] = [map_schemas(one, change) for one in copy[name]]
    for name in _ONE:
        if name in copy:
            copy[name] = map_schemas(copy[name], change)
    return change(copy)
