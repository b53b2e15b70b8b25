"""Workers of several ranks, as their peers see them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from baton.v1 import transfer_pb2
from shared.errors import ConfigError, InvalidRequestError
from shared.identity import WorkerId
from shared.kv.hand_off import Holder
from shared.kv.split import KVSplit
from shared.rpc.wire import worker_id_from_wire, worker_id_to_wire
from shared.worker.peers.wire import (
    offer_from_wire,
    offer_to_wire,
    ticket_from_wire,
    ticket_to_wire,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shared.connector.base import Offer, Ticket
    from shared.kv.hand_off import Pair
    from shared.kv.layout import KVLayout


@dataclass(frozen=True, slots=True)
class RankEndpoint:
    """One rank of a worker: who it is, and how its memory is reached."""

    worker: WorkerId
    offers: tuple[Offer, ...]


@dataclass(frozen=True, slots=True)
class RankGroup:
    """A worker's ranks, by rank, and how its KV is divided among them, and into blocks."""

    split: KVSplit
    ranks: tuple[RankEndpoint, ...]
    #: Tokens of a block.
    block_size: int


def rank_id(worker: WorkerId, rank: int) -> WorkerId:
    """Return the identity of one of the worker's ranks. The first is the worker itself."""
    return worker if rank == 0 else WorkerId(f"{worker.name}.{rank}", worker.incarnation)


def group_to_wire(group: RankGroup) -> transfer_pb2.RankGroup:
    """Return the message with all fields of the group."""
    return transfer_pb2.RankGroup(
        tensor_parallel_size=group.split.tensor_size,
        stages=[transfer_pb2.StageLayers(group_layers=stage) for stage in group.split.stages],
        ranks=[
            transfer_pb2.RankEndpoint(
                worker=worker_id_to_wire(rank.worker), offers=map(offer_to_wire, rank.offers)
            )
            for rank in group.ranks
        ],
    )


def group_of(info: transfer_pb2.PeerInfo, layout: KVLayout) -> RankGroup:
    """Return a peer's ranks; one that names none is a single rank, as peers of old versions are.

    layout: of the whole model; the peer's differs in the block size at most, which has been
    checked.

    Raises:
        InvalidRequestError: the ranks do not have all layers, or not each an endpoint.
    """
    if not info.HasField("rank_group"):
        offers = tuple(map(offer_from_wire, info.offers))
        single = RankEndpoint(worker_id_from_wire(info.worker), offers)
        return RankGroup(KVSplit.of(layout), (single,), info.layout.block_size)
    message = info.rank_group
    stages = tuple(tuple(stage.group_layers) for stage in message.stages)
    split = KVSplit(message.tensor_parallel_size, stages)
    try:
        split.check(layout)
    except ConfigError as error:
        raise InvalidRequestError(f"{info.worker.name}: {error}", param="rank_group") from error
    worker = worker_id_from_wire(info.worker)
    ranks = tuple(
        RankEndpoint(worker_id_from_wire(rank.worker), tuple(map(offer_from_wire, rank.offers)))
        for rank in message.ranks
    )
    if not split.size == len(ranks) == info.tensor_parallel_size:
        raise InvalidRequestError(
            f"{info.worker.name}: {len(ranks)} endpoints for {split.size} ranks of "
            f"{info.tensor_parallel_size}",
            param="rank_group",
        )
    for number, rank in enumerate(ranks):
        if rank.worker != rank_id(worker, number):
            raise InvalidRequestError(
                f"{worker}: rank {number} says that it is {rank.worker}", param="rank_group"
            )
    return RankGroup(split, ranks, info.layout.block_size)


def holder_of(group: RankGroup, layout: KVLayout) -> Holder:
    """Return what a map to or from these ranks needs. layout: of the whole model, here."""
    return Holder(replace(layout, block_size=group.block_size), group.split)


def tickets_to_wire(tickets: Mapping[Pair, Ticket]) -> list[transfer_pb2.RankTicket]:
    """Return the messages of a hand-off's tickets, in order of the ranks."""
    return [
        transfer_pb2.RankTicket(
            sender_rank=pair[0], receiver_rank=pair[1], ticket=ticket_to_wire(tickets[pair])
        )
        for pair in sorted(tickets)
    ]


def tickets_from_wire(messages: Sequence[transfer_pb2.RankTicket]) -> dict[Pair, Ticket]:
    """Return the tickets of a hand-off.

    Raises:
        InvalidRequestError: one is no valid ticket, or two are for the same ranks.
    """
    found: dict[Pair, Ticket] = {}
    for message in messages:
        pair = message.sender_rank, message.receiver_rank
        if pair in found:
            raise InvalidRequestError(f"two tickets for ranks {pair}", param="rank_tickets")
        found[pair] = ticket_from_wire(message.ticket)
    return found
