"""Nested elements as JSON: the schema says which of them are lists, objects or numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from services.router.parsers.syntax.values import NESTED, alternatives, as_json, string, types_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: The text of an element, or its children by name.
Element: TypeAlias = "str | list[tuple[str, Element]]"
#: How templates name the items of a list.
_ITEM = "item"


def element_json(element: Element, schema: Any, root: Mapping[str, Any]) -> str:
    """Return an element's value. `root`: the schema that references in `schema` mean."""
    types = types_in(schema, root)
    if isinstance(element, str):
        if not element.strip() and types & NESTED and "string" not in types:
            return "[]" if "array" in types else "{}"
        return as_json(element, types)
    if _is_list(element, types):
        items = _part(schema, root, None)
        return _list_of(element_json(child, items, root) for _, child in element)
    members: dict[str, list[str]] = {}
    for name, child in element:
        text = element_json(child, _part(schema, root, name), root)
        members.setdefault(name, []).append(text)
    joined = (
        f"{string(name)}: {values[0] if len(values) == 1 else _list_of(values)}"
        for name, values in members.items()
    )
    return f"{{{', '.join(joined)}}}"


def _list_of(values: Iterable[str]) -> str:
    return f"[{', '.join(values)}]"


def _is_list(children: Sequence[tuple[str, Element]], types: frozenset[str]) -> bool:
    if types & NESTED in ({"array"}, {"object"}):
        return "array" in types
    return all(name == _ITEM for name, _ in children)


def _part(schema: Any, root: Mapping[str, Any], name: str | None) -> Any:
    """Return the schema of a member, or of a list's items; None if there is none."""
    for option in alternatives(schema, root):
        if name is None:
            found = option.get("items")
        else:
            properties = option.get("properties")
            found = properties.get(name) if isinstance(properties, dict) else None
            found = option.get("additionalProperties") if found is None else found
        if isinstance(found, dict):
            return found
    return None
