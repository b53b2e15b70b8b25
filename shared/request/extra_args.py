"""Arguments of a request for custom logits processors: typed and bounded, otherwise not known here.

They come from outside and go to every worker that touches the request.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from shared.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    Scalar = bool | int | float | str
    ExtraArg = Scalar | tuple[Scalar, ...]

MAX_ARGS = 32
MAX_NAME_CHARS = 64
MAX_TEXT_CHARS = 4096
MAX_ITEMS = 1024
_MAX_INT = 2**63


def read_extra_args(value: Any, *, param: str) -> dict[str, ExtraArg]:
    """What JSON or the wire gave, checked; lists become tuples. None is no arguments.

    Raises:
        InvalidRequestError: `param` says where it is wrong.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{param} must be an object", param=param)
    if len(value) > MAX_ARGS:
        message = f"{param} must hold at most {MAX_ARGS} arguments, not {len(value)}"
        raise InvalidRequestError(message, param=param)
    return {name: _read_arg(name, arg, param) for name, arg in value.items()}


def check_extra_args(args: Mapping[str, ExtraArg]) -> None:
    """Raise InvalidRequestError if they are not what `read_extra_args` gives."""
    read_extra_args(dict(args), param="extra_args")


def _read_arg(name: Any, value: Any, param: str) -> ExtraArg:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
        message = f"{param}: a name must have 1 to {MAX_NAME_CHARS} characters"
        raise InvalidRequestError(message, param=param)
    where = f"{param}.{name}"
    if not isinstance(value, list | tuple):
        return _read_scalar(value, where)
    if len(value) > MAX_ITEMS:
        message = f"{where} must hold at most {MAX_ITEMS} items, not {len(value)}"
        raise InvalidRequestError(message, param=where)
    return tuple(_read_scalar(item, f"{where}[{i}]") for i, item in enumerate(value))


def _read_scalar(value: Any, where: str) -> Scalar:
    match value:
        case bool():
            return value
        case str() if len(value) <= MAX_TEXT_CHARS:
            return value
        case int() if -_MAX_INT <= value < _MAX_INT:
            return value
        case float() if math.isfinite(value):
            return value
    message = (
        f"{where} must be a boolean, a finite number (integers of 64 bits), a text of at most "
        f"{MAX_TEXT_CHARS} characters, or a list of these"
    )
    raise InvalidRequestError(message, param=where)
