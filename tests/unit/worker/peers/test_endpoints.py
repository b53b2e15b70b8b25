"""A worker's ranks as peers see them, and which connectors reach a peer's."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from baton.v1 import common_pb2, transfer_pb2
from shared.connector.base import Offer, Ticket
from shared.connector.instrumented import TransferCounters
from shared.connector.remote.serve import EndpointSettings, serve_endpoint
from shared.engine.offload.landings import LandingRefusal
from shared.errors import (
    IncompatiblePeerError,
    InvalidRequestError,
    RankError,
    TransferError,
    TransferFailure,
)
from shared.identity import WorkerId
from shared.kv.group_rules import GroupKind
from shared.kv.hand_off import Holder
from shared.kv.layout import KVGroup, KVLayout
from shared.kv.memory import KVMemory
from shared.kv.split import KVSplit, rank_layout
from shared.rpc.protocol import PROTOCOL_MAJOR, PROTOCOL_MINOR
from shared.rpc.wire import worker_id_to_wire
from shared.worker.peers import outgoing
from shared.worker.peers.connectors import open_connectors
from shared.worker.peers.endpoints import Endpoints
from shared.worker.peers.outgoing import GroupOrder, Recipients
from shared.worker.peers.ranks import (
    RankEndpoint,
    RankGroup,
    group_of,
    rank_id,
    tickets_to_wire,
)
from shared.worker.peers.wire import layout_to_wire, ticket_to_wire

if TYPE_CHECKING:
    from shared.connector.remote.address import EndpointAddress

LAYOUT = KVLayout.single(num_layers=2, num_kv_heads=2, block_size=4, head_dim=8, dtype="float32")
PEER = WorkerId("peer", "2")


@dataclass
class FakeConnector:
    """As much of a connector as choosing needs."""

    name: str
    reach: str = ""
    takes_parts: bool = True
    met: list[tuple[WorkerId, Offer]] = field(default_factory=list)

    async def can_reach(self, offer: Offer) -> bool:
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


def peer(*ranks: list[Offer], worker: WorkerId = PEER) -> RankGroup:
    each = (RankEndpoint(rank_id(worker, n), tuple(offers)) for n, offers in enumerate(ranks))
    return RankGroup(KVSplit.of(LAYOUT, len(ranks)), tuple(each), LAYOUT.block_size)


def _offer(name: str, address: str = "a") -> Offer:
    return Offer(connector=name, address=address, params={})


async def test_what_reaches_a_peer_is_told_in_our_order() -> None:
    ours = endpoints(
        [FakeConnector("zmq", "a"), FakeConnector("local", "-"), FakeConnector("shm", "ab")]
    )
    offers = [_offer("shm", "b"), _offer("local"), _offer("zmq")]
    assert await ours.reaching(peer(offers), None) == ["zmq", "shm"]
    assert await ours.reaching(peer([_offer("shm", "c")]), None) == []


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


async def test_a_connector_must_reach_every_rank_that_gets_something() -> None:
    ours = endpoints([FakeConnector("shm", "ab")], [FakeConnector("shm", "ab")])
    there = peer([_offer("shm", "a")], [_offer("shm", "c")])
    equal = ours.hand_off_to(there)
    assert await ours.reaching(there, equal) == []
    # Rank 1 of two sends to rank 1 alone.
    far = endpoints([FakeConnector("shm", "a")], [FakeConnector("shm", "c")])
    assert await far.reaching(there, equal) == ["shm"]


def test_whole_blocks_alone_are_not_enough_between_groups() -> None:
    ours = endpoints([FakeConnector("zmq", takes_parts=False), FakeConnector("nixl")])
    several = ours.hand_off_from(peer([], []))
    assert [ours.moves(name, None) for name in ("zmq", "nixl", "shm")] == [True, True, False]
    assert [ours.moves(name, several) for name in ("zmq", "nixl")] == [False, True]
    assert ours.hand_off_from(peer([])) is None


async def test_single_ranks_with_blocks_of_another_size_move_parts() -> None:
    ours = endpoints([FakeConnector("zmq", "a", takes_parts=False), FakeConnector("shm", "a")])
    there = replace(peer([_offer("zmq"), _offer("shm")]), block_size=8)
    to, back = ours.hand_off_to(there), ours.hand_off_from(there)
    assert to is not None
    assert back is not None
    assert (
        (to.sender_units, to.receiver_units) == (back.receiver_units, back.sender_units) == (1, 2)
    )
    assert await ours.reaching(there, to) == ["shm"]
    assert await ours.reaching(replace(there, block_size=4), None) == ["zmq", "shm"]
    with pytest.raises(IncompatiblePeerError, match=r"layout\.block_size"):
        ours.hand_off_to(replace(there, block_size=6))


async def test_a_prompt_is_ordered_by_the_receivers_blocks_and_a_prefix_not_at_all() -> None:
    recipients = Recipients(endpoints([FakeConnector("shm", "a")]))
    await recipients.meet(replace(peer([_offer("shm")]), block_size=8))
    message = message_of((0, 0))
    message.num_blocks = message.group_blocks[0] = 1
    # Of 11 tokens the receiver has 8: what is left are units of 4 tokens.
    order = recipients.order_prompt(message, 1, 11)
    assert isinstance(order, GroupOrder)
    assert (order.units, order.moved) == ((range(2, 3),), (range(2, 3),))
    with pytest.raises(InvalidRequestError, match="blocks of 4 tokens here, and of 8 there"):
        recipients.order_prefix(message, 1, 1)
    whole = ticket_to_wire(replace(ticket_of((0, 0)), layout=replace(LAYOUT, block_size=8)), [3])
    with pytest.raises(TransferError, match="layout_mismatch"):
        recipients.order_prompt(whole, 0, 11)


async def test_states_that_nobody_can_divide_are_refused_by_name() -> None:
    state = KVGroup(num_layers=1, num_kv_heads=0, head_dim=0, kind=GroupKind.STATE, state_size=6)
    layout = KVLayout.of((*LAYOUT.groups, state), block_size=4, dtype="float32")
    ours = endpoints([FakeConnector("shm")])
    ours = replace(ours, holder=Holder(layout, KVSplit.of(layout)))
    there = replace(peer([], []), split=KVSplit.of(layout, 2))
    with pytest.raises(IncompatiblePeerError, match=r"rank_group .*2 ranks.* the parts of a state"):
        await Recipients(ours).meet(there)


#: Of three blocks.
NUM_TOKENS = 11


def ticket_of(pair: tuple[int, int], connector: str = "shm") -> Ticket:
    return Ticket(
        transfer_id=bytes(16), connector=connector, address="", request_id="r",
        sender=rank_id(WorkerId("worker", "1"), pair[0]), receiver=rank_id(PEER, pair[1]),
        num_blocks=3, layout=LAYOUT,
    )  # fmt: skip


def message_of(*pairs: tuple[int, int]) -> transfer_pb2.TransferTicket:
    return transfer_pb2.TransferTicket(
        connector="shm",
        request_id="r",
        receiver=worker_id_to_wire(PEER),
        num_blocks=3,
        group_blocks=[3],
        rank_tickets=tickets_to_wire({pair: ticket_of(pair) for pair in pairs}),
    )


async def test_tickets_are_those_of_ranks_that_have_been_met(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipients = Recipients(endpoints([FakeConnector("shm", "a")]))
    message = message_of((0, 0), (0, 1))
    with pytest.raises(TransferError, match=f"no handshake with the ranks of {PEER}") as error:
        recipients.order_prompt(message, 0, NUM_TOKENS)
    assert error.value.reason is TransferFailure.UNKNOWN_TICKET
    there = peer([_offer("shm")], [_offer("shm")])
    assert await recipients.meet(there) == ["shm"]
    order = recipients.order_prompt(message, 0, NUM_TOKENS)
    assert isinstance(order, GroupOrder)
    assert sorted(order.tickets) == [(0, 0), (0, 1)]
    # A next life of the peer, and one peer too many, make it unknown.
    born_again = [
        replace(rank, worker=rank_id(WorkerId("peer", "3"), n))
        for n, rank in enumerate(there.ranks)
    ]
    await recipients.meet(replace(there, ranks=tuple(born_again)))
    with pytest.raises(TransferError, match="no handshake"):
        recipients.order_prompt(message, 0, NUM_TOKENS)
    monkeypatch.setattr(outgoing, "_MOST_PEERS", 1)
    await recipients.meet(there)
    recipients.order_prompt(message, 0, NUM_TOKENS)
    await recipients.meet(
        RankGroup(KVSplit.of(LAYOUT), (RankEndpoint(WorkerId("other", "1"), ()),), 4)
    )
    with pytest.raises(TransferError, match="no handshake"):
        recipients.order_prompt(message, 0, NUM_TOKENS)


async def test_tickets_that_do_not_fit_are_refused() -> None:
    recipients = Recipients(endpoints([FakeConnector("shm", "a")]))
    await recipients.meet(peer([_offer("shm")], [_offer("shm")]))
    with pytest.raises(InvalidRequestError, match="3] blocks by group"):
        recipients.order_prompt(message_of((0, 0), (0, 1)), 0, 8)
    old = message_of((0, 0), (0, 1))
    old.rank_tickets[1].ticket.sender.incarnation = "0"
    with pytest.raises(TransferError, match="names worker@0, this is worker@1"):
        recipients.order_prompt(old, 0, NUM_TOKENS)
    two = message_of((0, 0), (0, 1))
    two.rank_tickets[1].ticket.connector = "zmq"
    with pytest.raises(InvalidRequestError, match="tickets of zmq and shm"):
        recipients.order_prompt(two, 0, NUM_TOKENS)
    for pairs, num_blocks in [(((0, 0),), 3), (((0, 0), (0, 1)), 2), (((0, 0), (1, 7)), 3)]:
        message = message_of(*pairs)
        message.rank_tickets[-1].ticket.num_blocks = num_blocks
        order = recipients.order_prompt(message, 0, NUM_TOKENS)
        with pytest.raises(TransferError, match="tickets for ranks") as error:
            await order.connect(1.0)
        assert error.value.reason is TransferFailure.OUT_OF_RANGE


async def test_slices_are_of_peers_that_have_been_met_and_not_too_many() -> None:
    """From one rank to one, where whole blocks move otherwise."""
    recipients = Recipients(endpoints([FakeConnector("shm", "a")]))
    message = message_of((0, 0))
    message.num_slices = 3
    with pytest.raises(TransferError, match="no handshake"):
        recipients.order_prompt(message, 0, NUM_TOKENS)
    await recipients.meet(peer([_offer("shm")]))
    order = recipients.order_prompt(message, 0, NUM_TOKENS)
    assert isinstance(order, GroupOrder)
    assert order.hand_off.num_slices == 3
    message.num_slices = 1
    with pytest.raises(TransferError, match="no handshake"):
        recipients.order_prompt(message, 0, NUM_TOKENS)
    message.num_slices = outgoing.MOST_SLICES + 1
    with pytest.raises(InvalidRequestError, match="17 slices, 16 at most"):
        recipients.order_prompt(message, 0, NUM_TOKENS)


def test_a_group_takes_no_ticket_for_one_rank() -> None:
    """Peers that know of no ranks have been refused; hidden states do not move."""
    recipients = Recipients(endpoints([FakeConnector("shm")], [FakeConnector("shm")]))
    message = ticket_to_wire(ticket_of((0, 0)), [3])
    with pytest.raises(TransferError, match="a ticket for one rank, worker@1 has 2"):
        recipients.order_prompt(message, 0, NUM_TOKENS)


@dataclass
class FakeEngine:
    """As much of an engine of two ranks as connectors need."""

    rank_places: tuple[KVMemory | EndpointAddress, ...]
    layout: KVLayout = LAYOUT
    lost: list[RankError] = field(default_factory=list)
    refused: list[LandingRefusal] = field(default_factory=list)
    kv_split: KVSplit = KVSplit.of(LAYOUT, 2)  # noqa: RUF009 it is frozen

    def lose_rank(self, error: RankError) -> None:
        self.lost.append(error)

    def refuse_landings(self, why: LandingRefusal) -> None:
        self.refused.append(why)


def settings_of_two_ports() -> SimpleNamespace:
    return SimpleNamespace(
        connectors=("zmq",),
        runtime_dir=None,
        host="127.0.0.1",
        transfer_port=two_free_ports(),
        reachable_host="worker-7",
        advertise_transfer_port=9000,
        encrypts_transfers=False,
        transfer_packing="auto",
    )


async def test_fixed_ports_are_those_of_the_first_rank() -> None:
    layouts = (rank_layout(LAYOUT, FakeEngine.kv_split, rank) for rank in range(2))
    engine = FakeEngine(tuple(KVMemory(layout, 2) for layout in layouts))
    config = settings_of_two_ports()
    async with AsyncExitStack() as stack:
        ours = await open_connectors(config, PEER, engine, TransferCounters(), stack)  # type: ignore[arg-type]
        addresses = [rank.offers[0].address for rank in ours.group.ranks]
        assert addresses == ["tcp://worker-7:9000", "tcp://worker-7:9001"]
        for rank in range(2):
            with pytest.raises(OSError, match="in use"):
                socket.create_server(("127.0.0.1", config.transfer_port + rank))
    for memory in engine.rank_places:
        memory.close()


async def test_a_remote_rank_is_reached_at_its_own_host_and_lost_with_its_endpoint() -> None:
    own, other = (KVMemory(rank_layout(LAYOUT, FakeEngine.kv_split, rank), 2) for rank in range(2))
    settings = EndpointSettings(
        rank=1,
        token=b"0123456789abcdef",
        host="127.0.0.1",
        advertise_host="worker-8",  # where peers are, and rank 0 is not
        timeout_s=1e6,
    )
    endpoint = serve_endpoint(other, settings)
    engine, config = FakeEngine((own, endpoint.address)), settings_of_two_ports()
    async with AsyncExitStack() as stack:
        ours = await open_connectors(config, PEER, engine, TransferCounters(), stack)  # type: ignore[arg-type]
        addresses = [rank.offers[0].address for rank in ours.group.ranks]
        assert addresses == ["tcp://worker-7:9000", "tcp://worker-8:9001"]
        assert engine.refused == [LandingRefusal.CONNECTOR]
        assert not engine.lost
        endpoint.close()
        with pytest.raises(TransferError, match="rank 1"):
            await ours.connectors["zmq"][1].open(request_id="r", sender=PEER, blocks=[0])
        async with asyncio.timeout(5):
            while not engine.lost:  # noqa: ASYNC110 ZeroMQ tells of it
                await asyncio.sleep(0.01)
    assert [error.rank for error in engine.lost] == [1]
    for memory in (own, other):
        memory.close()


def two_free_ports() -> int:
    """Return the first of two neighbouring ports that are free."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as one, suppress(OSError, OverflowError):
            port: int = one.getsockname()[1]
            with socket.create_server(("127.0.0.1", port + 1)):
                return port
