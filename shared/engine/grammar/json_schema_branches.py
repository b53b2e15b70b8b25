"""Schemas that list values or branches: whether choosing one of them is all that there is to do."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import jsonschema_rs

if TYPE_CHECKING:
    from collections.abc import Callable

    Fault = Callable[[str], Exception]

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
    flat = [_followed(branch, root) for branch in branches]
    for (i, left), (j, right) in combinations(enumerate(flat), 2):
        if not _are_disjoint(left, right):
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


def _are_disjoint(left: Any, right: Any) -> bool:
    """Whether it is certain that no value is valid for both."""
    if not isinstance(left, dict) or not isinstance(right, dict):
        return False
    values, others = _values(left), _values(right)
    if values is not None and others is not None:
        return not any(_is_same(one, other) for one in values for other in others)
    for listed, schema in ((values, right), (others, left)):
        if listed is not None:
            types = _types(schema)
            return types is not None and not any(_type_of(one) & types for one in listed)
    types, other_types = _types(left), _types(right)
    if types is None or other_types is None:
        return False
    shared = types & other_types
    return not shared or (shared == {"object"} and _are_told_apart(left, right))


def _are_told_apart(left: dict[str, Any], right: dict[str, Any]) -> bool:
    """Whether both objects need a property that has other values in each."""
    common = set(left.get("required", ())) & set(right.get("required", ()))
    return any(_differ(left, right, name) for name in common)


def _differ(left: dict[str, Any], right: dict[str, Any], name: str) -> bool:
    mine = _values(left.get("properties", {}).get(name))
    theirs = _values(right.get("properties", {}).get(name))
    if mine is None or theirs is None:
        return False
    return not any(_is_same(one, other) for one in mine for other in theirs)


def _values(schema: Any) -> list[Any] | None:
    if isinstance(schema, dict) and "const" in schema:
        return [schema["const"]]
    if isinstance(schema, dict) and "enum" in schema:
        return list(schema["enum"])
    return None


def _types(schema: dict[str, Any]) -> set[str] | None:
    """Integers are numbers."""
    given = schema.get("type")
    if given is None:
        return None
    names = set(given) if isinstance(given, list) else {given}
    return {"number" if name == "integer" else name for name in names}


def _type_of(value: Any) -> set[str]:
    match value:
        case None:
            return {"null"}
        case bool():
            return {"boolean"}
        case int() | float():
            return {"number"}
        case str():
            return {"string"}
        case list():
            return {"array"}
        case _:
            return {"object"}


def _is_same(one: Any, other: Any) -> bool:
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
