"""Check of a ticket that this worker shall send into."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import TransferError, TransferFailure
from shared.worker.peers.wire import layout_from_wire

if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton.v1 import transfer_pb2
    from shared.connector.base import Connector, Ticket
    from shared.identity import WorkerId


def check_ticket(
    ticket: Ticket,
    worker: WorkerId,
    info: transfer_pb2.PeerInfo,
    connectors: Mapping[str, Connector],
) -> Connector:
    """Return the connector for a ticket that names this worker as its sender.

    Raises:
        TransferError: the ticket is for another worker or another incarnation of this one, for
            another layout, or for a connector that is not here.
    """
    if ticket.sender != worker:
        raise TransferError(
            TransferFailure.UNKNOWN_TICKET,
            f"request {ticket.request_id}: the ticket names {ticket.sender}, this is {worker}",
        )
    ours = layout_from_wire(info.layout)
    if ticket.layout != ours:
        raise TransferError(
            TransferFailure.LAYOUT_MISMATCH,
            f"request {ticket.request_id}: blocks are {ticket.layout} there and {ours} here",
        )
    if ticket.connector not in connectors:
        raise TransferError(
            TransferFailure.PEER_LOST,
            f"request {ticket.request_id}: no connector {ticket.connector!r} here, "
            f"only {sorted(connectors)}",
        )
    return connectors[ticket.connector]
