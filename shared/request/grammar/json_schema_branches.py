"""Schemas that list values or branches: whether choosing one of them is all that there is to do."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import jsonschema_rs

if TYPE_CHECKING:
    from collections.abc import Callable

    Fault = Callable[[str], Exception]
    _Key = tuple[str, object]

_MAX_BRANCHES = 64
#: What may stand beside a list of values and forbid some of them.
_CONSTRAINTS = frozenset(
    (
        "type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength",
        "maxLength", "minItems", "maxItems", "pattern", "required", "properties", "items",
        "additionalProperties", "prefixItems",
    )
)  # fmt: skip


def check_enumeration(schema: dict[str, Any], fault: Fault) -> None:
    """One of `enum` or `const` decides alone what comes: the rest of the schema must agree.

    Raises `fault` with what is not supported.
    """
    if "enum" in schema and "const" in schema:
        raise fault("enum beside const")
    name = "enum" if "enum" in schema else "const"
    values = schema["enum"] if name == "enum" else [schema["const"]]
    if not values:
        raise fault("an empty enum")
    others = {key: value for key, value in schema.items() if key in _CONSTRAINTS}
    if "$ref" in str(others):
        raise fault(f"{name} beside a reference")
    validator = jsonschema_rs.Draft202012Validator(others)
    for value in values:
        if not validator.is_valid(value):
            raise fault(f"{name} with {str(value)[:64]!r}, which the rest of the schema forbids,")


def check_one_of(branches: list[Any], fault: Fault, *, root: dict[str, Any]) -> None:
    """Any branch may be chosen if no value is valid for two of them.

    Raises `fault` with what is not supported.
    """
    if len(branches) > _MAX_BRANCHES:
        raise fault(f"over {_MAX_BRANCHES} branches")
    known = [_Branch(_followed(branch, root)) for branch in branches]
    for (i, left), (j, right) in combinations(enumerate(known), 2):
        if not left.is_apart_from(right):
            raise fault(
                f"a value may be valid for branches {i} and {j}, which only anyOf allows: this"
            )


def _followed(branch: Any, root: dict[str, Any]) -> Any:
    """The schema behind references to definitions."""
    for _ in range(_MAX_BRANCHES):
        ref = branch.get("$ref") if isinstance(branch, dict) else None
        if ref is None:
            return branch
        _, _, name = ref.rpartition("/")
        branch = root.get("$defs", root.get("definitions", {})).get(name)
    return branch


class _Branch:
    """What is certain of the values of a schema."""

    def __init__(self, schema: Any) -> None:
        self.values = _values(schema)
        self.types = _types(schema)
        if self.values is not None:
            self.types = frozenset(kind for kind, _ in self.values)
        #: Of the properties that an object must have, those with a list of values.
        self.tags: dict[str, frozenset[_Key]] = {}
        if isinstance(schema, dict) and self.types == frozenset({"object"}):
            for name in schema.get("required", ()):
                values = _values(schema.get("properties", {}).get(name))
                if values is not None:
                    self.tags[name] = values

    def is_apart_from(self, other: _Branch) -> bool:
        """Whether it is certain that no value is valid for both."""
        if self.types is None or other.types is None:
            return False
        if self.types.isdisjoint(other.types):
            return True
        if self.values is not None and other.values is not None:
            return self.values.isdisjoint(other.values)
        return any(
            self.tags[name].isdisjoint(other.tags[name]) for name in self.tags.keys() & other.tags
        )


def _values(schema: Any) -> frozenset[_Key] | None:
    if isinstance(schema, dict) and "const" in schema:
        return frozenset((_key(schema["const"]),))
    if isinstance(schema, dict) and "enum" in schema:
        return frozenset(map(_key, schema["enum"]))
    return None


def _types(schema: Any) -> frozenset[str] | None:
    """The types that a schema allows, integers as numbers; None if it names none."""
    given = schema.get("type") if isinstance(schema, dict) else None
    if given is None:
        return None
    names = given if isinstance(given, list) else (given,)
    return frozenset("number" if name == "integer" else name for name in names)


def _key(value: Any) -> _Key:
    """The value's type and something that is equal for equal values, in JSON's sense."""
    match value:
        case None:
            return "null", None
        case bool():
            return "boolean", value
        case int() | float():
            return "number", value
        case str():
            return "string", value
        case list():
            return "array", tuple(map(_key, value))
        case _:
            return "object", frozenset((name, _key(inner)) for name, inner in value.items())
