"""What peers ask this worker to send: tickets, checked by what their handshakes said."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from shared.connector.group.outbound import GroupOutbound
from shared.connector.group.whole import WholeOutbound
from shared.errors import InvalidRequestError, TransferError, TransferFailure
from shared.rpc.wire import worker_id_from_wire
from shared.worker.peers.ranks import rank_id, tickets_from_wire
from shared.worker.peers.wire import check_group_blocks, ticket_from_wire

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from baton.v1 import transfer_pb2
    from shared.connector.base import Connector, Ticket
    from shared.connector.group.base import SequenceOutbound
    from shared.kv.hand_off import HandOff, Pair
    from shared.kv.layout import KVLayout
    from shared.worker.peers.endpoints import Endpoints
    from shared.worker.peers.ranks import RankGroup

#: Peers whose ranks are remembered. One that was forgotten shakes hands again.
_MOST_PEERS = 4096
#: In more slices nothing is handed over.
MOST_SLICES = 16


@dataclass(slots=True)
class _Met:
    """A peer that may order blocks."""

    group: RankGroup
    #: The map to its ranks; None from one rank to one.
    hand_off: HandOff | None
    #: The same by slices, by their number.
    sliced: dict[int, HandOff] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WholeOrder:
    """An order of whole blocks, from one rank to one rank."""

    ticket: Ticket
    connector: Connector
    #: By group: the blocks of our table that move.
    moved: Sequence[range]

    async def connect(self, timeout_s: float) -> SequenceOutbound:
        """Start to send.

        Raises:
            TransferError: the receiver cannot be reached, or refuses.
        """
        transfer = await self.connector.connect(self.ticket, timeout_s)
        block_bytes = self.ticket.layout.block_bytes
        return WholeOutbound(transfer, moved=self.moved, block_bytes=block_bytes)


@dataclass(frozen=True, slots=True)
class GroupOrder:
    """An order of parts of blocks, by pairs of ranks."""

    hand_off: HandOff
    tickets: Mapping[Pair, Ticket]
    connectors: Sequence[Connector]
    #: By group; see `HandOff.moved`.
    units: tuple[range, ...]
    num_tokens: int

    @property
    def moved(self) -> Sequence[range]:
        """By group: the blocks of our table that move, in part at least."""
        return self.hand_off.sender_blocks(self.units)

    async def connect(self, timeout_s: float) -> SequenceOutbound:
        """See `WholeOrder.connect`."""
        return await GroupOutbound.connect(
            self.hand_off,
            tickets=self.tickets,
            connectors=self.connectors,
            moved=self.units,
            num_tokens=self.num_tokens,
            timeout_s=timeout_s,
        )


SendOrder: TypeAlias = WholeOrder | GroupOrder


class Recipients:
    """The peers that may order blocks from this worker, since they have shaken hands with it."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        #: By name, the latest one last.
        self._met: OrderedDict[str, _Met] = OrderedDict()

    async def meet(self, peer: RankGroup) -> list[str]:
        """Remember a peer's ranks; return the connectors by which ours reach them, best first.

        Raises:
            IncompatiblePeerError: its ranks and ours cannot hand over to each other.
        """
        hand_off = self._endpoints.hand_off_to(peer)
        worker = peer.ranks[0].worker
        self._met[worker.name] = _Met(peer, hand_off)
        self._met.move_to_end(worker.name)
        if len(self._met) > _MOST_PEERS:
            self._met.popitem(last=False)
        return await self._endpoints.reaching(peer, hand_off)

    def order_prompt(
        self, message: transfer_pb2.TransferTicket, first_block: int, num_tokens: int
    ) -> SendOrder:
        """Return what a ticket for a prompt orders: what follows `first_block` blocks of the
        receiver's.

        Raises:
            InvalidRequestError: the ticket is for other blocks.
            TransferError: the ticket is for another worker or another incarnation of this one, for
                another layout or other ranks, or for a connector that is not here.
        """
        if not message.rank_tickets:
            moved = self._endpoints.holder.layout.moved(first_block, num_tokens)
            return self._whole_order(message, moved)
        hand_off = self._hand_off(message)
        return self._order(message, hand_off, hand_off.moved(first_block, num_tokens), num_tokens)

    def order_prefix(
        self, message: transfer_pb2.TransferTicket, first_block: int, num_blocks: int
    ) -> SendOrder:
        """Return what a ticket for so many cached blocks of a prefix orders.

        Raises:
            InvalidRequestError, TransferError: see `order_prompt`.
        """
        layout = self._endpoints.holder.layout
        moved = layout.needed(first_block, num_blocks)
        if not message.rank_tickets:
            return self._whole_order(message, moved)
        hand_off = self._hand_off(message)
        if hand_off.sender_units != hand_off.receiver_units:
            raise InvalidRequestError(
                f"request {message.request_id}: hashes are of blocks of {layout.block_size} tokens "
                f"here, and of {hand_off.receiver.layout.block_size} there",
                param="block_hashes",
            )
        num_tokens = (first_block + num_blocks) * layout.block_size
        return self._order(message, hand_off, moved, num_tokens)

    def _whole_order(
        self, message: transfer_pb2.TransferTicket, moved: tuple[range, ...]
    ) -> WholeOrder:
        ticket, connector = self.whole(message)
        check_group_blocks(message, [len(blocks) for blocks in moved])
        return WholeOrder(ticket, connector, moved)

    def _order(
        self,
        message: transfer_pb2.TransferTicket,
        hand_off: HandOff,
        units: tuple[range, ...],
        num_tokens: int,
    ) -> GroupOrder:
        tickets = tickets_from_wire(message.rank_tickets)
        for (sender, _), ticket in tickets.items():
            if ticket.connector != message.connector:
                raise InvalidRequestError(
                    f"request {message.request_id}: tickets of {ticket.connector} and "
                    f"{message.connector}",
                    param="rank_tickets",
                )
            self._check(ticket, sender, hand_off.layout)
        check_group_blocks(message, [len(blocks) for blocks in hand_off.receiver_blocks(units)])
        connectors = self._endpoints.connectors[message.connector]
        return GroupOrder(hand_off, tickets, connectors, units, num_tokens)

    def whole(self, message: transfer_pb2.TransferTicket) -> tuple[Ticket, Connector]:
        """Return a ticket for whole blocks, and the connector for it.

        Raises:
            TransferError: see `order_prompt`.
        """
        ticket = ticket_from_wire(message)
        if self._endpoints.num_ranks > 1:
            raise TransferError(
                TransferFailure.LAYOUT_MISMATCH,
                f"request {ticket.request_id}: a ticket for one rank, {self._endpoints.worker} has "
                f"{self._endpoints.num_ranks}",
            )
        self._check(ticket, 0, self._endpoints.holder.layout)
        return ticket, self._endpoints.connectors[ticket.connector][0]

    def _hand_off(self, message: transfer_pb2.TransferTicket) -> HandOff:
        receiver = worker_id_from_wire(message.receiver)
        met = self._met.get(receiver.name)
        hand_off = None
        if met is not None and met.group.ranks[0].worker == receiver:
            hand_off = self._sliced(met, message) if message.num_slices > 1 else met.hand_off
        if hand_off is None:
            raise TransferError(
                TransferFailure.UNKNOWN_TICKET,
                f"request {message.request_id}: no handshake with the ranks of {receiver}",
            )
        return hand_off

    def _sliced(self, met: _Met, message: transfer_pb2.TransferTicket) -> HandOff:
        num_slices = message.num_slices
        if num_slices > MOST_SLICES:
            raise InvalidRequestError(
                f"request {message.request_id}: {num_slices} slices, {MOST_SLICES} at most",
                param="num_slices",
            )
        if num_slices not in met.sliced:
            met.sliced[num_slices] = self._endpoints.slices_to(met.group, num_slices)
        return met.sliced[num_slices]

    def _check(self, ticket: Ticket, rank: int, layout: KVLayout) -> None:
        ours = self._endpoints
        sender = rank_id(ours.worker, rank)
        if ticket.sender != sender:
            raise TransferError(
                TransferFailure.UNKNOWN_TICKET,
                f"request {ticket.request_id}: the ticket names {ticket.sender}, this is {sender}",
            )
        if ticket.layout != layout:
            raise TransferError(
                TransferFailure.LAYOUT_MISMATCH,
                f"request {ticket.request_id}: blocks are {ticket.layout} there and {layout} here",
            )
        if ticket.connector not in ours.connectors:
            raise TransferError(
                TransferFailure.PEER_LOST,
                f"request {ticket.request_id}: no connector {ticket.connector!r} here, "
                f"only {sorted(ours.connectors)}",
            )
