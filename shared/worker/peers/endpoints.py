"""How this worker is reached: a connector of each name for each of its ranks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from baton.v1 import common_pb2, transfer_pb2
from shared.rpc.protocol import PROTOCOL_MAJOR, PROTOCOL_MINOR
from shared.rpc.wire import worker_id_to_wire
from shared.worker.peers.ranks import RankEndpoint, RankGroup, group_to_wire, rank_id
from shared.worker.peers.wire import layout_to_wire, offer_to_wire

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shared.connector.base import Connector
    from shared.identity import WorkerId
    from shared.kv.hand_off import Holder


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
        return RankGroup(self.holder.split, tuple(ranks))

    def describe(self, *, model_fingerprint: str, namespace: bytes) -> transfer_pb2.PeerInfo:
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
        )

    def meet(self, peer: RankGroup) -> None:
        """Record the offers of a peer's ranks: they may send from now on."""
        for rank in peer.ranks:
            for offer in rank.offers:
                for connector in self.connectors.get(offer.connector, ()):
                    connector.meet(rank.worker, offer)

    def reaching(self, peer: RankGroup) -> list[str]:
        """Return the connectors by which each rank can send to each of the peer's, best first."""
        return [
            name
            for name, ours in self.connectors.items()
            if all(
                any(offer.connector == name and one.can_reach(offer) for offer in rank.offers)
                for one in ours
                for rank in peer.ranks
            )
        ]
