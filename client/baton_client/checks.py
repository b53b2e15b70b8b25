"""Type checks of parameters' values. An InvalidRequestError names the parameter.

They know no server's limits: only types, and what the contract can carry.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Mapping, Set
from typing import Any

from baton_client.errors import invalid

#: Largest value of a 32-bit float.
_LARGEST = 3.4028234663852886e38
_NO_LISTS = (str, bytes, bytearray, memoryview, Mapping, Set)


def text(param: str, value: Any) -> str:
    """Return a string that can be encoded as UTF-8."""
    if not isinstance(value, str):
        raise _wrong_type(param, "a string", value)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        message = f"it has half a surrogate pair at {error.start}, which UTF-8 cannot write"
        raise invalid(param, message) from error
    return value


def flag(param: str, value: Any) -> bool:
    """Return True or False; refuse numbers."""
    if not isinstance(value, bool):
        raise _wrong_type(param, "True or False", value)
    return value


def integer(param: str, value: Any) -> int:
    """Return an integer of any library; refuse booleans."""
    if isinstance(value, bool):
        raise _wrong_type(param, "an integer", value)
    try:
        return operator.index(value)
    except TypeError as error:
        raise _wrong_type(param, "an integer", value) from error


def number(param: str, value: Any) -> float:
    """Return a finite number that fits 32 bits."""
    converted = number_or_infinity(param, value)
    if abs(converted) > _LARGEST:
        raise invalid(param, "it must be a finite number of 32 bits")
    return converted


def number_or_infinity(param: str, value: Any) -> float:
    """Return a number of any library, perhaps infinite; refuse booleans."""
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
    """Return a time over 0; infinity is no limit."""
    converted = number_or_infinity(param, value)
    if converted <= 0:
        raise invalid(param, "it must be over 0 seconds; math.inf is no limit")
    return converted


def items(param: str, value: Any) -> list[Any]:
    """Return the elements of a list, tuple, array or iterator; refuse strings and mappings.

    Bytes are refused, too.
    """
    if not isinstance(value, _NO_LISTS):
        try:
            return list(value)
        except TypeError:
            pass
    raise _wrong_type(param, "a list", value)


def integers(param: str, value: Any) -> list[int]:
    """Return a list of integers."""
    found = items(param, value)
    if all(type(item) is int for item in found):
        return found
    return [integer(f"{param}[{i}]", item) for i, item in enumerate(found)]


def texts(param: str, value: Any) -> list[str]:
    """Return a list of strings."""
    return [text(f"{param}[{i}]", item) for i, item in enumerate(items(param, value))]


def mapping(param: str, value: Any) -> dict[str, Any]:
    """Return a mapping with string keys."""
    if not isinstance(value, Mapping):
        raise _wrong_type(param, "a mapping", value)
    return {text(f"{param} (a key)", key): item for key, item in value.items()}


def json_object(param: str, value: Any) -> str:
    """Return a mapping as JSON; a string is JSON already."""
    return text(param, value) if isinstance(value, str) else as_json(param, mapping(param, value))


def as_json(param: str, value: Any) -> str:
    """Return `value` as JSON, strings included."""
    try:
        written = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid(param, f"it cannot be written as JSON: {error}") from error
    return text(param, written)


def _wrong_type(param: str, expected: str, value: Any) -> Exception:
    return invalid(param, f"it must be {expected}, not {type(value).__name__}")
