"""What every service's messages have in common, between the wire and our own records."""

from __future__ import annotations

from baton.v1 import common_pb2
from shared.errors import InvalidRequestError
from shared.identity import WorkerId


def worker_id_to_wire(worker: WorkerId) -> common_pb2.WorkerId:
    """Name and incarnation."""
    return common_pb2.WorkerId(name=worker.name, incarnation=worker.incarnation)


def worker_id_from_wire(message: common_pb2.WorkerId) -> WorkerId:
    """Raises InvalidRequestError if a part is empty."""
    if not message.name or not message.incarnation:
        raise InvalidRequestError("a worker needs a name and an incarnation", param="worker")
    return WorkerId(message.name, message.incarnation)
