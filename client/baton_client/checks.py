"""Whether a value is what its parameter takes. An InvalidRequestError names the parameter if not.

Nothing here knows what a server allows: these are types, and what the contract can carry.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Mapping, Set
from typing import Any

from baton_client.errors import invalid

#: What a 32-bit float holds.
_LARGEST = 3.4028234663852886e38
_NO_LISTS = (str, bytes, bytearray, memoryview, Mapping, Set)


def text(param: str, value: Any) -> str:
    """A string that can be written as UTF-8."""
    if not isinstance(value, str):
        raise _wrong_type(param, "a string", value)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        message = f"it has half a surrogate pair at {error.start}, which UTF-8 cannot write"
        raise invalid(param, message) from error
    return value


def flag(param: str, value: Any) -> bool:
    """True or False, and no number."""
    if not isinstance(value, bool):
        raise _wrong_type(param, "True or False", value)
    return value


def integer(param: str, value: Any) -> int:
    """An integer, of any library, and no boolean."""
    if isinstance(value, bool):
        raise _wrong_type(param, "an integer", value)
    try:
        return operator.index(value)
    except TypeError as error:
        raise _wrong_type(param, "an integer", value) from error


def number(param: str, value: Any) -> float:
    """A finite number that 32 bits hold."""
    converted = number_or_infinity(param, value)
    if abs(converted) > _LARGEST:
        raise invalid(param, "it must be a finite number of 32 bits")
    return converted


def number_or_infinity(param: str, value: Any) -> float:
    """A number, of any library, and no boolean."""
    if isinstance(value, bool | str | bytes | bytearray):
        raise _wrong_type(param, "a number", value)
    try:
        converted = float(value)
    except (TypeError, ValueError) as error:
        raise _wrong_type(param, "a number", value) from error
    except OverflowError as error:
        raise invalid(param, "it is too large") from error
    if math.isnan(converted):
        raise invalid(param, "it must be a number, not nan")
    return converted


def seconds(param: str, value: Any) -> float:
    """A time over 0; infinity is no limit."""
    converted = number_or_infinity(param, value)
    if converted <= 0:
        raise invalid(param, "it must be over 0 seconds; math.inf is no limit")
    return converted


def items(param: str, value: Any) -> list[Any]:
    """The elements of a list, tuple, array or iterator; strings, bytes and mappings are none."""
    if not isinstance(value, _NO_LISTS):
        try:
            return list(value)
        except TypeError:
            pass
    raise _wrong_type(param, "a list", value)


def integers(param: str, value: Any) -> list[int]:
    """A list of integers."""
    found = items(param, value)
    if all(type(item) is int for item in found):
        return found
    return [integer(f"{param}[{i}]", item) for i, item in enumerate(found)]


def texts(param: str, value: Any) -> list[str]:
    """A list of strings."""
    return [text(f"{param}[{i}]", item) for i, item in enumerate(items(param, value))]


def mapping(param: str, value: Any) -> dict[str, Any]:
    """A mapping with string keys."""
    if not isinstance(value, Mapping):
        raise _wrong_type(param, "a mapping", value)
    return {text(f"{param} (a key)", key): item for key, item in value.items()}


def json_object(param: str, value: Any) -> str:
    """A mapping as JSON; a string is JSON already."""
    return text(param, value) if isinstance(value, str) else as_json(param, mapping(param, value))


def as_json(param: str, value: Any) -> str:
    """`value` as JSON, strings included."""
    try:
        written = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid(param, f"it cannot be written as JSON: {error}") from error
    return text(param, written)


def _wrong_type(param: str, expected: str, value: Any) -> Exception:
    return invalid(param, f"it must be {expected}, not {type(value).__name__}")
