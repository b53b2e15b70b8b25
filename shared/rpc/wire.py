"""Common parts of all services' messages, converted to and from our records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.v1 import common_pb2
from shared.errors import InvalidRequestError
from shared.identity import Role, WorkerId

if TYPE_CHECKING:
    from collections.abc import Collection

#: Maximum length in the greeting of two connectors.
MAX_NAME_BYTES = 255
_ROLES = {Role.PREFILL: common_pb2.ROLE_PREFILL, Role.DECODE: common_pb2.ROLE_DECODE}
_ROLES_BACK = {wire: role for role, wire in _ROLES.items()}


def worker_id_to_wire(worker: WorkerId) -> common_pb2.WorkerId:
    """Return the message with name and incarnation."""
    return common_pb2.WorkerId(name=worker.name, incarnation=worker.incarnation)


def worker_id_from_wire(message: common_pb2.WorkerId) -> WorkerId:
    """Return a worker's id.

    Raises:
        InvalidRequestError: a part is empty or longer than greetings can carry.
    """
    if not message.name or not message.incarnation:
        raise InvalidRequestError("a worker needs a name and an incarnation", param="worker")
    for part in (message.name, message.incarnation):
        if len(part.encode()) > MAX_NAME_BYTES:
            text = f"a worker's name and incarnation have at most {MAX_NAME_BYTES} bytes"
            raise InvalidRequestError(text, param="worker")
    return WorkerId(message.name, message.incarnation)


def role_to_wire(role: Role) -> common_pb2.Role.ValueType:
    """Return the number of a worker's role."""
    return _ROLES[role]


def role_from_wire(role: common_pb2.Role.ValueType) -> Role | None:
    """Return a worker's role; None for one that is unset, or of a later version."""
    return _ROLES_BACK.get(role)


def roles_to_wire(roles: Collection[Role]) -> list[common_pb2.Role.ValueType]:
    """Return the numbers of workers' roles, ascending."""
    return [wire for role, wire in _ROLES.items() if role in roles]
