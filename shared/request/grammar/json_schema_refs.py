"""References inside a JSON Schema: `$ref` to a place of the same document."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from shared.errors import InvalidRequestError, UnsupportedError

#: Different ones: looking for loops takes time in proportion to their square.
MAX_REFS = 256


def resolve(root: dict[str, Any], ref: str, *, param: str, path: str) -> Any:
    """The schema that `ref`, which stands at `path`, means.

    Raises:
        InvalidRequestError: there is no such place.
        UnsupportedError: it is in another document.
    """
    if ref != "#" and not ref.startswith("#/"):
        message = f"{param} at {path}/$ref: {ref[:64]!r} is not in this schema; it is not fetched"
        raise UnsupportedError(message, param=param)
    found: Any = root
    for step in unquote(ref).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            message = f"{param} at {path}/$ref: there is no {ref[:64]!r}"
            raise InvalidRequestError(message, param=param)
    if not isinstance(found, dict | bool):
        message = f"{param} at {path}/$ref: {ref[:64]!r} is no schema"
        raise InvalidRequestError(message, param=param)
    return found


def check_loops(root: dict[str, Any], *, param: str) -> None:
    """Refuse references that lead to themselves with nothing in between, or with too much.

    A value that must contain itself has no end, so nothing would be valid.

    Raises InvalidRequestError naming the reference.
    """
    refs = _all_refs(root)
    if len(refs) > MAX_REFS:
        message = f"{param}: over {MAX_REFS} different references are not supported"
        raise UnsupportedError(message, param=param)
    schemas = {ref: resolve(root, ref, param=param, path="#") for ref in refs}
    finite: set[str] = set()
    # Each round finds schemas that need none but those of the rounds before to come to an end.
    is_new = True
    while is_new:
        found = {ref for ref in refs - finite if _may_end(schemas[ref], finite)}
        finite |= found
        is_new = bool(found)
    endless = sorted(refs - finite)
    if endless or not _may_end(root, finite):
        name = endless[0] if endless else "#"
        message = f"{param}: {name[:64]!r} contains itself without end, so nothing is valid for it"
        raise InvalidRequestError(message, param=param)


def _all_refs(value: Any) -> set[str]:
    if isinstance(value, list):
        return {ref for inner in value for ref in _all_refs(inner)}
    if not isinstance(value, dict):
        return set()
    refs = {ref for key, inner in value.items() if key not in _VALUES for ref in _all_refs(inner)}
    if isinstance(value.get("$ref"), str):
        refs.add(value["$ref"])
    return refs


_VALUES = frozenset(("enum", "const", "default", "examples"))


def _may_end(schema: Any, finite: set[str]) -> bool:
    """Whether some value that ends is valid, if those of the references in `finite` end."""
    if not isinstance(schema, dict) or "enum" in schema or "const" in schema:
        return True
    if "$ref" in schema:
        return schema["$ref"] in finite
    for name in ("anyOf", "oneOf"):
        if name in schema:
            return any(_may_end(branch, finite) for branch in schema[name])
    if not all(_may_end(branch, finite) for branch in schema.get("allOf", ())):
        return False
    types = schema.get("type")
    if types is not None and not {"object", "array"}.issuperset(_as_list(types)):
        return True
    needed = [
        schema["properties"][name]
        for name in schema.get("required", ())
        if name in schema.get("properties", {})
    ]
    prefix, num_items = schema.get("prefixItems", []), schema.get("minItems", 0)
    needed += prefix[:num_items]
    if num_items > len(prefix):
        needed.append(schema.get("items", True))
    return all(_may_end(one, finite) for one in needed)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
