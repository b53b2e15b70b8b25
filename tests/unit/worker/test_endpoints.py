"""A worker's ranks as peers see them, and which connectors reach a peer's."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton.v1 import common_pb2, transfer_pb2
from shared.connector.base import Offer
from shared.identity import WorkerId
from shared.kv.hand_off import Holder
from shared.kv.layout import KVLayout
from shared.kv.split import KVSplit
from shared.rpc.protocol import PROTOCOL_MAJOR, PROTOCOL_MINOR
from shared.worker.peers.endpoints import Endpoints
from shared.worker.peers.ranks import RankEndpoint, RankGroup, group_of, rank_id
from shared.worker.peers.wire import layout_to_wire

LAYOUT = KVLayout.single(num_layers=2, num_kv_heads=2, block_size=4, head_dim=8, dtype="float32")
PEER = WorkerId("peer", "2")


@dataclass
class FakeConnector:
    """As much of a connector as choosing needs."""

    name: str
    reach: str = ""
    met: list[tuple[WorkerId, Offer]] = field(default_factory=list)

    def can_reach(self, offer: Offer) -> bool:
        return offer.address in self.reach

    def offer(self) -> Offer:
        return Offer(connector=self.name, address=f"at {self.name}", params={})

    def meet(self, worker: WorkerId, offer: Offer) -> None:
        self.met.append((worker, offer))


def endpoints(*ranks: list[FakeConnector]) -> Endpoints:
    by_name = {each[0].name: each for each in zip(*ranks, strict=True)}
    return Endpoints(
        worker=WorkerId("worker", "1"),
        holder=Holder(LAYOUT, KVSplit.of(LAYOUT, len(ranks))),
        connectors=by_name,  # type: ignore[arg-type]
    )


def peer(*ranks: list[Offer]) -> RankGroup:
    each = (RankEndpoint(rank_id(PEER, n), tuple(offers)) for n, offers in enumerate(ranks))
    return RankGroup(KVSplit.of(LAYOUT, len(ranks)), tuple(each))


def _offer(name: str, address: str = "a") -> Offer:
    return Offer(connector=name, address=address, params={})


def test_what_reaches_a_peer_is_told_in_our_order() -> None:
    ours = endpoints(
        [FakeConnector("zmq", "a"), FakeConnector("local", "-"), FakeConnector("shm", "ab")]
    )
    offers = [_offer("shm", "b"), _offer("local"), _offer("zmq")]
    assert ours.reaching(peer(offers), None) == ["zmq", "shm"]
    assert ours.reaching(peer([_offer("shm", "c")]), None) == []


def test_a_single_rank_is_described_as_before_there_were_several() -> None:
    info = endpoints([FakeConnector("shm"), FakeConnector("zmq")]).describe(
        model_fingerprint="f00d", namespace=b"\xca\xfe"
    )
    assert info == transfer_pb2.PeerInfo(
        protocol=common_pb2.ProtocolVersion(major=PROTOCOL_MAJOR, minor=PROTOCOL_MINOR),
        worker=common_pb2.WorkerId(name="worker", incarnation="1"),
        model_fingerprint="f00d",
        layout=layout_to_wire(LAYOUT),
        namespace="cafe",
        offers=[
            transfer_pb2.ConnectorOffer(connector="shm", address="at shm"),
            transfer_pb2.ConnectorOffer(connector="zmq", address="at zmq"),
        ],
        tensor_parallel_size=1,
    )


def test_several_ranks_are_described_with_an_endpoint_each() -> None:
    ours = endpoints([FakeConnector("shm")], [FakeConnector("shm")])
    info = ours.describe(model_fingerprint="", namespace=b"")
    assert info.tensor_parallel_size == 2
    assert group_of(info, LAYOUT) == ours.group
    assert [rank.worker.name for rank in ours.group.ranks] == ["worker", "worker.1"]


def test_every_rank_may_send_to_every_rank_that_it_has_met() -> None:
    ours = endpoints([FakeConnector("shm")], [FakeConnector("shm")])
    ours.meet(peer([_offer("shm", "0"), _offer("zmq", "0")], [_offer("shm", "1")]))
    for connector in ours.all_connectors:
        assert connector.met == [
            (rank_id(PEER, rank), _offer("shm", str(rank))) for rank in range(2)
        ]
