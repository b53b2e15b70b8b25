"""A JSON Schema with a function applied to each of its schemas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: Keywords whose values hold schemas: by name, in a list, or a single one.
_BY_NAME = ("properties", "$defs", "definitions")
_IN_LIST = ("anyOf", "oneOf", "allOf", "prefixItems")
_ONE = ("items", "additionalProperties")


def map_schemas(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return a copy with `change` applied to every schema, inner ones first.

    Only for schemas that `check_schema` accepts: other keywords are not searched.
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
