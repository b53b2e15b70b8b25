"""The option `extra_args` on the wire."""

from __future__ import annotations

from typing import Any

from baton_client import checks, contract
from baton_client.errors import invalid
from baton_client.fields import out_of_range

_NAME = "extra_args"


def write_extra_args(params: contract.GenerationParams, value: Any) -> None:
    """Write arguments of logits processors.

    Raises:
        InvalidRequestError: an argument is invalid.
    """
    for name, arg in checks.mapping(_NAME, value).items():
        params.extra_args[name].CopyFrom(_arg(arg))


def _arg(value: Any) -> contract.ExtraArg:
    if not isinstance(value, list | tuple):
        return _scalar(value)
    made = contract.ExtraArg()
    made.list.SetInParent()
    made.list.items.extend(_scalar(item) for item in value)
    return made


def _scalar(value: Any) -> contract.ExtraArg:
    match value:
        case bool():
            return contract.ExtraArg(flag=value)
        case int():
            try:
                return contract.ExtraArg(integer=value)
            except ValueError as error:
                raise out_of_range(_NAME) from error
        case float():
            return contract.ExtraArg(number=checks.number_or_infinity(_NAME, value))
        case str():
            return contract.ExtraArg(text=checks.text(_NAME, value))
    raise invalid(_NAME, f"{type(value).__name__} is no argument")
