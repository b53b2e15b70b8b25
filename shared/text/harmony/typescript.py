"""Functions and their JSON Schemas as TypeScript, in which gpt-oss reads them.

What has no type here is `any`, and references are not followed, as in OpenAI's own library.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_NAMES = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "array": "Array<any>",
}


def namespace(name: str, functions: Iterable[Mapping[str, Any]]) -> str:
    """Return a namespace with a declaration of each function."""
    declared = "".join(_declaration(function) + "\n\n" for function in functions)
    return f"namespace {name} {{\n\n{declared}}} // namespace {name}"


def _declaration(function: Mapping[str, Any]) -> str:
    comment = _comment(function.get("description"))
    parameters = function.get("parameters")
    taken = f"_: {type_of(parameters)}" if parameters else ""
    return f"{comment}type {function['name']} = ({taken}) => any;"


def type_of(schema: Any, indent: str = "") -> str:
    """Return the type of the values that a schema allows. Later lines begin with `indent`."""
    if not isinstance(schema, dict):
        return "any"
    variants, kind = schema.get("oneOf"), schema.get("type")
    if isinstance(variants, list):
        return "".join(f"\n{indent} | {_variant(variant, indent)}" for variant in variants)
    if isinstance(kind, list):
        return " | ".join("number" if name == "integer" else str(name) for name in kind)
    if kind == "object":
        return _object(schema, indent)
    if kind == "array" and "items" in schema:
        return f"{type_of(schema['items'], indent)}[]"
    values = _texts(schema.get("enum")) if kind == "string" else ()
    return " | ".join(f'"{text}"' for text in values) or _NAMES.get(str(kind), "any")


def _object(schema: Mapping[str, Any], indent: str) -> str:
    properties = schema.get("properties")
    required = schema.get("required") or ()
    members = "".join(
        _member(name if name in required else f"{name}?", value, indent)
        for name, value in (properties if isinstance(properties, dict) else {}).items()
    )
    return f"{_comment(schema.get('description'), indent)}{{\n{members}{indent}}}"


def _member(name: str, schema: Any, indent: str) -> str:
    if not isinstance(schema, dict):
        return f"{indent}{name}: any,\n"
    variants = schema.get("oneOf")
    comments = f"{indent}// {schema['title']}\n{indent}//\n" if schema.get("title") else ""
    if not isinstance(variants, list):
        comments += _comment(schema.get("description"), indent) + _examples(schema, indent)
        default = f" // {_default(schema)}" if "default" in schema else ""
        return f"{comments}{indent}{name}: {_nullable(schema, indent + '    ')},{default}\n"
    described = schema.get("description")
    is_above = bool(described) and not (variants and _described(variants[0]) == described)
    comments += _examples(schema, indent)
    if is_above:
        comments += _comment(described, indent)
    if "default" in schema:
        comments += f"{indent}// {_default(schema)}\n"
    lines = ""
    for i, variant in enumerate(variants):
        is_said = _described(variant) == described or (is_above and i == 0)
        lines += f"{indent} | {_variant(variant, indent, describes=not is_said)}\n"
    return f"{comments}{indent}{name}:\n{lines}{indent},\n"


def _variant(schema: Any, indent: str, *, describes: bool = True) -> str:
    """Return one type of several, with a comment at its end."""
    text = _nullable(schema, indent + "   ")
    if not isinstance(schema, dict):
        return text
    described = schema.get("description")
    notes = [described] if describes and isinstance(described, str) else []
    if "default" in schema:
        notes.append(_default(schema))
    return f"{text} // {' '.join(notes)}" if notes else text


def _nullable(schema: Any, indent: str) -> str:
    text = type_of(schema, indent)
    is_nullable = isinstance(schema, dict) and schema.get("nullable") is True
    return f"{text} | null" if is_nullable and "null" not in text else text


def _described(schema: Any) -> Any:
    return schema.get("description") if isinstance(schema, dict) else None


def _default(schema: Mapping[str, Any]) -> str:
    value = schema["default"]
    if isinstance(value, str):
        return f"default: {value}" if schema.get("enum") else f'default: "{value}"'
    return f"default: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}"


def _examples(schema: Mapping[str, Any], indent: str) -> str:
    examples = schema.get("examples")
    if not isinstance(examples, list) or not examples:
        return ""
    lines = "".join(f'{indent}// - "{text}"\n' for text in _texts(examples))
    return f"{indent}// Examples:\n{lines}"


def _comment(text: Any, indent: str = "") -> str:
    """Return the lines of a text as comments."""
    if not isinstance(text, str):
        return ""
    return "".join(f"{indent}// {line}\n" for line in text.splitlines())


def _texts(values: Any) -> Sequence[str]:
    return [value for value in values or () if isinstance(value, str)]
