"""How this worker is reached: a connector of each name for each of its ranks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from baton.v1 import common_pb2, transfer_pb2
from shared.errors import ConfigError, IncompatiblePeerError
from shared.kv.hand_off import HandOff, Holder
from shared.rpc.protocol import PROTOCOL_MAJOR, PROTOCOL_MINOR
from shared.rpc.wire import worker_id_to_wire
from shared.worker.peers.ranks import RankEndpoint, RankGroup, group_to_wire, holder_of, rank_id
from shared.worker.peers.wire import layout_to_wire, offer_to_wire

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shared.connector.base import Connector
    from shared.identity import WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """The started connectors of one worker, and what each rank has of its blocks."""

    worker: WorkerId
    #: The layout of the whole model, and the ranks.
    holder: Holder
    #: By name, the preferred one first: by rank.
    connectors: Mapping[str, Sequence[Connector]]

    @property
    def all_connectors(self) -> tuple[Connector, ...]:
        """Those of all names and ranks."""
        return tuple(chain.from_iterable(self.connectors.values()))

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return self.holder.split.size

    @property
    def group(self) -> RankGroup:
        """The ranks as peers see them."""
        ranks = (
            RankEndpoint(
                rank_id(self.worker, rank),
                tuple(each[rank].offer() for each in self.connectors.values()),
            )
            for rank in range(self.num_ranks)
        )
        return RankGroup(self.holder.split, tuple(ranks), self.holder.layout.block_size)

    def describe(
        self, *, model_fingerprint: str, namespace: bytes, sends_layers: bool = False
    ) -> transfer_pb2.PeerInfo:
        """Return what peers compare. A single rank is described as before there were several."""
        group = self.group
        return transfer_pb2.PeerInfo(
            protocol=common_pb2.ProtocolVersion(major=PROTOCOL_MAJOR, minor=PROTOCOL_MINOR),
            worker=worker_id_to_wire(self.worker),
            model_fingerprint=model_fingerprint,
            layout=layout_to_wire(self.holder.layout),
            namespace=namespace.hex(),
            offers=map(offer_to_wire, group.ranks[0].offers),
            tensor_parallel_size=self.num_ranks,
            rank_group=group_to_wire(group) if self.num_ranks > 1 else None,
            sends_layers=sends_layers,
        )

    def meet(self, peer: RankGroup) -> None:
        """Record the offers of a peer's ranks: they may send from now on."""
        for rank in peer.ranks:
            for offer in rank.offers:
                for connector in self.connectors.get(offer.connector, ()):
                    connector.meet(rank.worker, offer)

    def hand_off_to(self, peer: RankGroup) -> HandOff | None:
        """Return what each rank has for each of the peer's; None if whole blocks move, from one
        rank to one.

        Raises:
            IncompatiblePeerError: they cannot hand over to each other.
        """
        return self._hand_off(self.holder, holder_of(peer, self.holder.layout), peer)

    def hand_off_from(self, peer: RankGroup) -> HandOff | None:
        """Return the same in the other direction."""
        return self._hand_off(holder_of(peer, self.holder.layout), self.holder, peer)

    def slices_to(self, peer: RankGroup, num_slices: int) -> HandOff:
        """Return what `hand_off_to` does, in so many slices of each group's layers."""
        return HandOff(self.holder, holder_of(peer, self.holder.layout), num_slices)

    def slices_from(self, peer: RankGroup, num_slices: int) -> HandOff:
        """Return the same in the other direction."""
        return HandOff(holder_of(peer, self.holder.layout), self.holder, num_slices)

    async def reaching(self, peer: RankGroup, hand_off: HandOff | None) -> list[str]:
        """Return the connectors by which our ranks reach the peer's, the best one first.

        hand_off: from us to the peer; the ranks that have something for each other matter.
        """
        pairs = ((0, 0),) if hand_off is None else hand_off.pairs
        return [
            name
            for name, ours in self.connectors.items()
            if self.moves(name, hand_off) and await _reach(ours, peer, pairs)
        ]

    def moves(self, name: str, hand_off: HandOff | None) -> bool:
        """Return whether a hand-off, in either direction, may go by the connector of this name."""
        ours = self.connectors.get(name, ())
        return bool(ours) and (hand_off is None or all(one.takes_parts for one in ours))

    def _hand_off(self, sender: Holder, receiver: Holder, peer: RankGroup) -> HandOff | None:
        sizes = sender.layout.block_size, receiver.layout.block_size
        if sender.split.size == receiver.split.size == 1 and sizes[0] == sizes[1]:
            return None
        try:
            return HandOff(sender, receiver)
        except ConfigError as error:
            raise IncompatiblePeerError(
                "rank_group",
                ours=f"{self.num_ranks} ranks ({error})",
                theirs=f"{len(peer.ranks)} ranks",
                peer=str(peer.ranks[0].worker),
            ) from error


async def _reach(
    connectors: Sequence[Connector], peer: RankGroup, pairs: Iterable[tuple[int, int]]
) -> bool:
    for sender, receiver in pairs:
        if not await _reaches(connectors[sender], peer.ranks[receiver]):
            return False
    return True


async def _reaches(connector: Connector, rank: RankEndpoint) -> bool:
    for offer in rank.offers:
        if offer.connector == connector.name and await connector.can_reach(offer):
            return True
    return False
