"""Which JSON Schemas can be followed exactly. What cannot be is refused by name and place, so that
an answer that ends is valid for what the client wrote.

The keywords are those of draft 2020-12 that every backend follows, in the combinations in which
none of them is passed over. `pattern` is narrower than the standard: the whole string matches it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jsonschema_rs

from shared.errors import InvalidRequestError, UnsupportedError
from shared.request.grammar.json_schema_branches import check_enumeration, check_one_of
from shared.request.grammar.json_schema_refs import check_loops, resolve
from shared.request.grammar.regex import check_string_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_META_SCHEMA = "https://json-schema.org/draft/2020-12/schema"
MAX_DEPTH = 32
#: Largest minItems, maxLength and the like: each repetition becomes states of an automaton.
MAX_COUNT = 10_000
FORMATS = frozenset(
    ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid")
)
_ANNOTATIONS = frozenset(
    (
        "$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default",
        "examples", "deprecated", "readOnly", "writeOnly",
    )
)  # fmt: skip
_UNSUPPORTED = (
    "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef",
    "additionalItems", "contains", "contentEncoding", "contentMediaType", "contentSchema",
    "dependencies", "dependentRequired", "dependentSchemas", "else", "if", "maxContains",
    "maxProperties", "minContains", "minProperties", "multipleOf", "not", "patternProperties",
    "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength")
#: Keywords that decide alone what comes: nothing else beside them would be looked at.
_ALONE = ("$ref", "anyOf", "oneOf", "allOf")


def check_schema(schema: Any, *, param: str) -> None:
    """Raise an error that names the place unless every answer to `schema` will be valid.

    Raises:
        InvalidRequestError: it is no JSON Schema, or nothing fits it.
        UnsupportedError: it uses what cannot be followed.
    """
    if not isinstance(schema, dict):
        message = f"{param}: a schema must be a JSON object, not {type(schema).__name__}"
        raise InvalidRequestError(message, param=param)
    _check_meta(schema, param)
    _Walk(schema, param).visit(schema, "#", 0)
    check_loops(schema, param=param)


class _Walk:
    """Visits all schemas of a document, unreferenced ones included."""

    def __init__(self, root: dict[str, Any], param: str) -> None:
        self._root = root
        self._param = param

    def visit(self, schema: Any, path: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise self._invalid(path, f"schemas are nested over {MAX_DEPTH} deep")
        if schema is True:
            return
        if schema is False:
            raise self._invalid(path, "nothing is valid here")
        self._check_keywords(schema, path)
        for check in (self._check_string, self._check_object, self._check_array):
            check(schema, path)
        if "oneOf" in schema:
            check_one_of(schema["oneOf"], self._fault_at(f"{path}/oneOf"), root=self._root)
        if "enum" in schema or "const" in schema:
            check_enumeration(schema, self._fault_at(path))
        if "$ref" in schema:
            resolve(self._root, schema["$ref"], param=self._param, path=path)
        for inner, inner_path in _inner_schemas(schema, path):
            self.visit(inner, inner_path, depth + 1)

    def _check_keywords(self, schema: dict[str, Any], path: str) -> None:
        for name in _UNSUPPORTED:
            if name in schema:
                raise self._unsupported(path, name)
        if schema.get("uniqueItems"):
            raise self._unsupported(path, "uniqueItems")
        if len(schema.get("allOf", ())) > 1:
            raise self._unsupported(path, "allOf of several schemas")
        for name in _COUNTS:
            if schema.get(name, 0) > MAX_COUNT:
                raise self._unsupported(path, f"{name} over {MAX_COUNT}")
        alone = [name for name in _ALONE if name in schema]
        others = schema.keys() - _ANNOTATIONS - {"type"}
        if alone and ("enum" in schema or "const" in schema):
            raise self._unsupported(path, f"{alone[0]} beside enum or const")
        if alone and len(others) > 1:
            name = min(others - {alone[0]})
            raise self._unsupported(path, f"{alone[0]} beside {name}")
        if alone and "type" in schema and not self._have_type(schema, alone[0]):
            raise self._unsupported(path, f"{alone[0]} beside a type that it does not repeat")

    def _have_type(self, schema: dict[str, Any], keyword: str) -> bool:
        """Whether each branch has the type that stands beside them."""
        branches = [{"$ref": schema["$ref"]}] if keyword == "$ref" else schema[keyword]
        return all(self._type_of(branch) == schema["type"] for branch in branches)

    def _type_of(self, branch: Any) -> Any:
        """What a schema, or the one that it refers to, says."""
        for _ in range(MAX_DEPTH):
            if not isinstance(branch, dict) or "type" in branch or "$ref" not in branch:
                break
            branch = resolve(self._root, branch["$ref"], param=self._param, path="#")
        return branch.get("type") if isinstance(branch, dict) else None

    def _check_string(self, schema: dict[str, Any], path: str) -> None:
        given = [name for name in ("pattern", "format") if name in schema]
        lengths = [name for name in ("minLength", "maxLength") if name in schema]
        if given and (len(given) > 1 or lengths):
            raise self._unsupported(path, f"{given[0]} beside {(given[1:] + lengths)[0]}")
        if "pattern" in schema:
            where = f" at {path}/pattern"
            check_string_pattern(schema["pattern"], param=self._param, where=where)
        if "format" in schema and schema["format"] not in FORMATS:
            known = ", ".join(sorted(FORMATS))
            name = f"format {str(schema['format'])[:64]!r} (there are: {known})"
            raise self._unsupported(path, name)
        self._check_order(schema, path, "minLength", "maxLength")

    def _check_object(self, schema: dict[str, Any], path: str) -> None:
        properties = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in properties:
                raise self._unsupported(path, f"required {name[:64]!r}, which properties lacks,")

    def _check_array(self, schema: dict[str, Any], path: str) -> None:
        self._check_order(schema, path, "minItems", "maxItems")
        num_named = len(schema.get("prefixItems", ()))
        if schema.get("items") is False and schema.get("minItems", 0) > num_named:
            raise self._invalid(path, f"minItems is over the {num_named} items that there may be")

    def _check_order(self, schema: dict[str, Any], path: str, low: str, high: str) -> None:
        if high in schema and schema.get(low, 0) > schema[high]:
            raise self._invalid(path, f"{low} is over {high}")

    def _fault_at(self, path: str) -> Callable[[str], Exception]:
        return lambda what: self._unsupported(path, what)

    def _unsupported(self, path: str, what: str) -> UnsupportedError:
        message = f"{self._param} at {path}: {what} is not supported"
        return UnsupportedError(message, param=self._param)

    def _invalid(self, path: str, what: str) -> InvalidRequestError:
        return InvalidRequestError(f"{self._param} at {path}: {what}", param=self._param)


def _inner_schemas(schema: dict[str, Any], path: str) -> Iterable[tuple[Any, str]]:
    for name in ("properties", "$defs", "definitions"):
        for key, inner in schema.get(name, {}).items():
            yield inner, f"{path}/{name}/{_escaped(key)}"
    for name in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for place, inner in enumerate(schema.get(name, ())):
            yield inner, f"{path}/{name}/{place}"
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            yield schema[name], f"{path}/{name}"


def _escaped(key: str) -> str:
    """As JSON Pointer writes it."""
    return key[:64].replace("~", "~0").replace("/", "~1")


def _check_meta(schema: dict[str, Any], param: str) -> None:
    # The innermost error says most: those around it only repeat that something is wrong inside.
    errors = sorted(_meta().iter_errors(schema), key=lambda error: -len(error.instance_path))
    if errors:
        path = "/".join(["#", *(_escaped(str(step)) for step in errors[0].instance_path)])
        message = f"{param} at {path}: {errors[0].message[:256]}"
        raise InvalidRequestError(message, param=param)


@lru_cache(maxsize=1)
def _meta() -> jsonschema_rs.Draft202012Validator:
    """Of schemas themselves; the library has the standard's own text of it."""
    return jsonschema_rs.Draft202012Validator({"$ref": _META_SCHEMA})
