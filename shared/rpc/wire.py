"""What every service's messages have in common, between the wire and our own records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.v1 import common_pb2
from shared.errors import InvalidRequestError
from shared.identity import WorkerId

if TYPE_CHECKING:
    from collections.abc import Mapping

    Scalar = bool | int | float | str

#: What the greeting of two connectors has room for.
MAX_NAME_BYTES = 255


def worker_id_to_wire(worker: WorkerId) -> common_pb2.WorkerId:
    """Name and incarnation."""
    return common_pb2.WorkerId(name=worker.name, incarnation=worker.incarnation)


def worker_id_from_wire(message: common_pb2.WorkerId) -> WorkerId:
    """Raises InvalidRequestError if a part is empty or longer than greetings can carry."""
    if not message.name or not message.incarnation:
        raise InvalidRequestError("a worker needs a name and an incarnation", param="worker")
    for part in (message.name, message.incarnation):
        if len(part.encode()) > MAX_NAME_BYTES:
            text = f"a worker's name and incarnation have at most {MAX_NAME_BYTES} bytes"
            raise InvalidRequestError(text, param="worker")
    return WorkerId(message.name, message.incarnation)


def extra_args_to_wire(
    args: Mapping[str, Scalar | tuple[Scalar, ...]],
) -> dict[str, common_pb2.ExtraArg]:
    """Each value as what it is."""
    return {name: _extra_arg_to_wire(value) for name, value in args.items()}


def extra_args_from_wire(
    args: Mapping[str, common_pb2.ExtraArg],
) -> dict[str, Scalar | tuple[Scalar, ...]]:
    """Raises InvalidRequestError if one has no value, or lists inside a list."""
    return {
        name: tuple(_scalar_from_wire(name, item) for item in arg.list.items)
        if arg.HasField("list")
        else _scalar_from_wire(name, arg)
        for name, arg in args.items()
    }


def _extra_arg_to_wire(value: Scalar | tuple[Scalar, ...]) -> common_pb2.ExtraArg:
    match value:
        case bool():
            return common_pb2.ExtraArg(flag=value)
        case int():
            return common_pb2.ExtraArg(integer=value)
        case float():
            return common_pb2.ExtraArg(number=value)
        case str():
            return common_pb2.ExtraArg(text=value)
    items = [_extra_arg_to_wire(item) for item in value]
    return common_pb2.ExtraArg(list=common_pb2.ExtraArgs(items=items))


def _scalar_from_wire(name: str, arg: common_pb2.ExtraArg) -> Scalar:
    match arg.WhichOneof("value"):
        case "flag":
            return arg.flag
        case "integer":
            return arg.integer
        case "number":
            return arg.number
        case "text":
            return arg.text
    message = f"extra_args.{name[:64]} must be a value or a list of values"
    raise InvalidRequestError(message, param="extra_args")
