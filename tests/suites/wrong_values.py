"""Values that do not fit an annotation, made from the annotation itself.

`wrong_values(hint)` covers what a parameter takes down to the keys of its mappings, so a test that
walks signatures covers new parameters by itself.
"""

from __future__ import annotations

import functools
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any


def _cyclic() -> list[Any]:
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    return cyclic


def _deep() -> list[Any]:
    deep: list[Any] = []
    for _ in range(50_000):
        deep = [deep]
    return deep


HOSTILE: tuple[Any, ...] = (
    None, True, 0, 7, -1, -(2**63), 2**64, 10**400, -(10**5000), 1.5, 1e39,
    math.nan, math.inf, -math.inf, 1 + 2j, "", "x", "\x00", "\ud800", "9",
    b"x", b"\xff", bytearray(b"x"), memoryview(b"x"),
    [], [None], [[1]], [["a"]], ["\ud800"], [b"a"], [1.5], [True], [math.nan], [10**400], (), {},
    {"a": 1}, {1: 2}, {None: None}, {b"a": 1}, {"\ud800": "x"}, {"a": "\ud800"}, {"type": 7},
    {"type": ["x"]}, {"json": object()}, {"regex": 7}, {"choice": "abc"}, {"json": {"a": math.nan}},
    {"a": object()}, {"a": {1, 2}}, {"a": b"x"}, set(), {1}, frozenset({"a"}), object(), object,
    len, Exception("x"), _cyclic(), {"a": _cyclic()}, _deep(), {"a": _deep()}, {"json": _deep()},
)  # fmt: skip


def fits(hint: Any, value: Any) -> bool:  # noqa: PLR0911 one line per kind of annotation
    """Whether `value` is of this type; a number must be one, a string must have a UTF-8 form."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if hint is None or hint is type(None):
        return value is None
    if origin in (typing.Union, types.UnionType):
        return any(fits(arg, value) for arg in args)
    if origin in (typing.NotRequired, typing.Required):
        return fits(args[0], value)
    if origin is typing.Literal:
        return any(type(value) is type(arg) and value == arg for arg in args)
    if origin is Sequence:
        return isinstance(value, list | tuple) and all(fits(args[0], item) for item in value)
    if origin is Mapping:
        return isinstance(value, dict) and all(
            fits(args[0], key) and fits(args[1], item) for key, item in value.items()
        )
    if typing.is_typeddict(hint):
        hints = _keys(hint)
        return (
            isinstance(value, dict)
            and all(key in value for key in _required(hint))
            and all(fits(hints[key], item) for key, item in value.items() if key in hints)
        )
    return _is_scalar(hint, value)


def sample(hint: Any) -> Any:
    """A value that fits."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return sample(next(arg for arg in args if arg is not type(None)))
    if origin is typing.Literal:
        return args[0]
    if origin is Sequence:
        return [sample(args[0])]
    if origin is Mapping:
        return {sample(args[0]): sample(args[1])}
    if typing.is_typeddict(hint):
        hints = _keys(hint)
        return {key: sample(hints[key]) for key in _required(hint)}
    return {bool: True, int: 1, float: 0.5, str: "x"}.get(hint)


def values_for(hint: Any) -> typing.Iterator[Any]:
    """Hostile values, in the place of the whole and of each part of it."""
    yield from HOSTILE
    yield from nested_values_for(hint)


def nested_values_for(hint: Any) -> typing.Iterator[Any]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        for arg in args:
            yield from nested_values_for(arg)
    elif origin is Sequence:
        for value in values_for(args[0]):
            yield [sample(args[0]), value]
    elif origin is Mapping:
        for value in values_for(args[1]):
            yield {sample(args[0]): value}
    elif typing.is_typeddict(hint):
        whole = sample(hint)
        for key, inner in _keys(hint).items():
            yield {name: value for name, value in whole.items() if name != key}
            for value in values_for(inner):
                yield {**whole, key: value}


@functools.cache
def _keys(hint: Any) -> Mapping[str, Any]:
    """The keys of a TypedDict with their annotations. Enter what these mention in NAMES first."""
    return typing.get_type_hints(hint, localns=NAMES)


@functools.cache
def _required(hint: Any) -> list[str]:
    """`__required_keys__` does not see NotRequired in annotations that are strings."""
    hints = typing.get_type_hints(hint, localns=NAMES, include_extras=True)
    return [
        key for key, inner in hints.items() if typing.get_origin(inner) is not typing.NotRequired
    ]


def _is_scalar(hint: Any, value: Any) -> bool:
    match hint:
        case builtin if builtin is bool:
            return isinstance(value, bool)
        case builtin if builtin is int:
            return isinstance(value, int) and not isinstance(value, bool)
        case builtin if builtin is float:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return is_number and (isinstance(value, int) or not math.isnan(value))
        case builtin if builtin is str:
            return _has_utf8(value)
    return isinstance(value, hint)


def _has_utf8(value: Any) -> bool:
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


#: What annotations that are imported for type checkers alone may mention.
NAMES: dict[str, Any] = {"Mapping": Mapping, "Sequence": Sequence, "Any": Any}
