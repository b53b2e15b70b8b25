"""Writes values into messages of the contract, after a check of their types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import FieldDescriptor

from baton_client import checks
from baton_client.errors import invalid

if TYPE_CHECKING:
    from collections.abc import Callable

_INTEGERS = (
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_UINT64,
)
_CHECKS: dict[int, Callable[[str, Any], Any]] = {
    FieldDescriptor.CPPTYPE_STRING: checks.text,
    FieldDescriptor.CPPTYPE_BOOL: checks.flag,
    FieldDescriptor.CPPTYPE_FLOAT: checks.number,
    **dict.fromkeys(_INTEGERS, checks.integer),
}


def write_scalar(target: Any, name: str, value: Any, *, param: str) -> None:
    """Set the field `name`, which has one number, flag or string.

    Raises:
        InvalidRequestError: there is no such field, or it does not accept `value`.
    """
    field = target.DESCRIPTOR.fields_by_name.get(name)
    check = None if field is None else _CHECKS.get(field.cpp_type)
    if check is None:
        raise invalid(param, "there is no such field")
    checked = check(param, value)
    try:
        setattr(target, name, checked)
    except ValueError as error:
        raise out_of_range(param) from error


def write_integers(target: Any, value: Any, *, param: str) -> None:
    """Extend the repeated field `target` by a list of integers.

    Raises:
        InvalidRequestError: it is no such list, or an integer is out of range.
    """
    ids = checks.integers(param, value)
    try:
        target.extend(ids)
    except ValueError as error:
        raise out_of_range(param) from error


def out_of_range(param: str) -> Exception:
    """Return the error for a value that the contract's type of number cannot hold."""
    return invalid(param, "a number is out of range")
