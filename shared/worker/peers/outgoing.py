"""Check of a ticket that this worker shall send into."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import TransferError, TransferFailure

if TYPE_CHECKING:
    from shared.connector.base import Connector, Ticket
    from shared.worker.peers.endpoints import Endpoints


def check_ticket(ticket: Ticket, endpoints: Endpoints) -> Connector:
    """Return the connector for a ticket that names this worker as its sender.

    Raises:
        TransferError: the ticket is for another worker or another incarnation of this one, for
            another layout, or for a connector that is not here.
    """
    if ticket.sender != endpoints.worker:
        raise TransferError(
            TransferFailure.UNKNOWN_TICKET,
            f"request {ticket.request_id}: the ticket names {ticket.sender}, this is "
            f"{endpoints.worker}",
        )
    ours = endpoints.holder.layout
    if ticket.layout != ours:
        raise TransferError(
            TransferFailure.LAYOUT_MISMATCH,
            f"request {ticket.request_id}: blocks are {ticket.layout} there and {ours} here",
        )
    if ticket.connector not in endpoints.connectors:
        raise TransferError(
            TransferFailure.PEER_LOST,
            f"request {ticket.request_id}: no connector {ticket.connector!r} here, "
            f"only {sorted(endpoints.connectors)}",
        )
    return endpoints.connectors[ticket.connector][0]
