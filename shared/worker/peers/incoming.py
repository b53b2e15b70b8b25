"""A peer's writes into our blocks: their beginning, and their end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from baton.v1 import transfer_pb2
from shared.connector.group.inbound import GroupInbound
from shared.rpc.cancellation import run_to_end
from shared.rpc.wire import worker_id_to_wire
from shared.worker.peers.ranks import tickets_to_wire
from shared.worker.peers.wire import layout_to_wire, ticket_to_wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.connector.group.base import SequenceInbound
    from shared.kv.hand_off import HandOff
    from shared.kv.memory import KVMemory
    from shared.worker.peers.peers import Peer


@dataclass(frozen=True, slots=True)
class Incoming:
    """A sequence's blocks that a peer is to fill, and the ticket for it."""

    inbound: SequenceInbound
    ticket: transfer_pb2.TransferTicket


async def open_incoming(
    peer: Peer,
    *,
    request_id: str,
    tables: Sequence[Sequence[int]],
    moved: tuple[range, ...],
    num_tokens: int,
    hand_off: HandOff | None,
    memory: KVMemory | None = None,
) -> Incoming:
    """Let a peer fill blocks: the whole ones, or the parts that its ranks have for ours.

    hand_off: of the peer, `hand_off` or `sliced`. tables: by KV group, the blocks that move. moved:
    which of a sequence of `num_tokens` tokens they are, or in which units what `hand_off` moves is.
    memory: see `Connector.open`.
    """
    sizes = [len(table) for table in tables]
    if hand_off is None:
        inbound = await peer.connectors[0].open(
            request_id=request_id,
            sender=peer.worker,
            blocks=tuple(chain.from_iterable(tables)),
            memory=memory,
        )
        return Incoming(inbound, ticket_to_wire(inbound.ticket, sizes))
    group = await GroupInbound.open(
        hand_off,
        request_id=request_id,
        senders=[rank.worker for rank in peer.group.ranks],
        connectors=peer.connectors,
        tables=tables,
        moved=moved,
        num_tokens=num_tokens,
        memory=memory,
    )
    ticket = _ticket_of(group, peer, sizes)
    if hand_off.num_slices > 1:
        ticket.num_slices = hand_off.num_slices
    return Incoming(group, ticket)


def _ticket_of(
    group: GroupInbound, peer: Peer, sizes: Sequence[int]
) -> transfer_pb2.TransferTicket:
    """Return a message with the tickets of all pairs of ranks, and what they have in common."""
    tickets = group.tickets
    first = next(iter(tickets.values()))
    return transfer_pb2.TransferTicket(
        connector=first.connector,
        request_id=first.request_id,
        sender=worker_id_to_wire(peer.worker),
        receiver=worker_id_to_wire(peer.receiver),
        num_blocks=sum(sizes),
        layout=layout_to_wire(first.layout),
        group_blocks=sizes,
        rank_tickets=tickets_to_wire(tickets),
    )


async def close_inbound(inbound: SequenceInbound, arrival: asyncio.Task[object]) -> None:
    """End a transfer and the task that waits for it; then its blocks are not written to.

    If cancelled, this still ends the transfer, and then raises CancelledError.
    """
    arrival.cancel()
    await run_to_end(_abort(inbound, arrival))


async def _abort(inbound: SequenceInbound, arrival: asyncio.Task[object]) -> None:
    await inbound.abort()
    await asyncio.gather(arrival, return_exceptions=True)
