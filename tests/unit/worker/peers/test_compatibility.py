"""I14: incompatible peers refuse each other and say which field differs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.v1 import common_pb2, transfer_pb2
from shared.connector.base import Offer, Ticket
from shared.errors import IncompatiblePeerError, InvalidRequestError
from shared.identity import WorkerId
from shared.kv.split import KVSplit
from shared.rpc.protocol import (
    BLOCK_SIZES_MINOR,
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
    RANKS_MINOR,
)
from shared.worker.peers.compatibility import check_compatible
from shared.worker.peers.ranks import (
    RankEndpoint,
    RankGroup,
    group_of,
    group_to_wire,
    holder_of,
    rank_id,
    tickets_from_wire,
    tickets_to_wire,
)
from shared.worker.peers.wire import layout_from_wire


def peer() -> transfer_pb2.PeerInfo:
    return transfer_pb2.PeerInfo(
        protocol=common_pb2.ProtocolVersion(major=PROTOCOL_MAJOR, minor=PROTOCOL_MINOR),
        worker=common_pb2.WorkerId(name="prefill-0", incarnation="abc"),
        model_fingerprint="f00d",
        layout=transfer_pb2.KVLayout(
            num_layers=4, num_kv_heads=2, block_size=16, head_dim=80, dtype="bfloat16", version=1
        ),
        namespace="cafe",
        tensor_parallel_size=1,
    )


def test_equal_peers_are_compatible() -> None:
    check_compatible(peer(), peer())


@pytest.mark.parametrize("minor", [PROTOCOL_MINOR + 1, PROTOCOL_MINOR + 7])
def test_another_minor_version_is_compatible(minor: int) -> None:
    theirs = peer()
    theirs.protocol.minor = minor
    check_compatible(peer(), theirs)
    check_compatible(theirs, peer())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("protocol.major", PROTOCOL_MAJOR + 1),
        ("model_fingerprint", "beef"),
        ("layout.num_layers", 5),
        ("layout.num_kv_heads", 4),
        ("layout.head_dim", 64),
        ("layout.dtype", "float32"),
        ("layout.scales", "f00d"),
        ("layout.block_size", 24),
        ("layout.block_size", 0),
        ("layout.version", 2),
        ("tensor_parallel_size", 2),
        ("namespace", "other"),
    ],
)
def test_a_difference_is_refused_by_name(field: str, value: object) -> None:
    theirs = peer()
    holder: object = theirs
    *path, name = field.split(".")
    for step in path:
        holder = getattr(holder, step)
    setattr(holder, name, value)
    with pytest.raises(IncompatiblePeerError, match=field) as refusal:
        check_compatible(peer(), theirs)
    assert refusal.value.field == field
    assert str(value) in str(refusal.value)


def with_blocks_of(block_size: int, minor: int = PROTOCOL_MINOR) -> transfer_pb2.PeerInfo:
    """A peer whose block size is in its namespace."""
    info = peer()
    info.protocol.minor, info.layout.block_size = minor, block_size
    info.namespace = f"{block_size:04x}"
    return info


def test_blocks_may_have_other_sizes_if_one_divides_the_other() -> None:
    for one, other in [(8, 16), (16, 48), (16, 16), (1, 5)]:
        check_compatible(with_blocks_of(one), with_blocks_of(other))
        check_compatible(with_blocks_of(other), with_blocks_of(one))
    assert group_of(with_blocks_of(8), LAYOUT).block_size == 8
    # Then the namespaces differ in any case; else they must not.
    foreign = with_blocks_of(16)
    foreign.namespace = "other"
    with pytest.raises(IncompatiblePeerError, match="namespace"):
        check_compatible(with_blocks_of(16), foreign)


@pytest.mark.parametrize(("one", "other"), [(8, 12), (16, 24), (16, 0)])
def test_blocks_that_do_not_consist_of_each_other_are_refused(one: int, other: int) -> None:
    with pytest.raises(IncompatiblePeerError, match=r"layout\.block_size") as refusal:
        check_compatible(with_blocks_of(one), with_blocks_of(other))
    assert refusal.value.field == "layout.block_size"


def test_peers_before_other_block_sizes_refuse_them() -> None:
    old = with_blocks_of(8, BLOCK_SIZES_MINOR - 1)
    for pair in [(old, with_blocks_of(16)), (with_blocks_of(16), old)]:
        with pytest.raises(IncompatiblePeerError, match=r"layout\.block_size"):
            check_compatible(*pair)
    check_compatible(old, with_blocks_of(8))


LAYOUT = layout_from_wire(peer().layout)


def divided(size: int = 2, stages: tuple[tuple[int, ...], ...] = ((1,), (3,))) -> RankGroup:
    """A worker's ranks: two stages, of one and of three layers."""
    worker = WorkerId("prefill-0", "abc")
    offer = Offer(connector="zmq", address="tcp://host:1", params={"boot_id": "b"})
    ranks = (RankEndpoint(rank_id(worker, rank), (offer,)) for rank in range(size * len(stages)))
    return RankGroup(KVSplit(size, stages), tuple(ranks), LAYOUT.block_size)


def peer_of(group: RankGroup) -> transfer_pb2.PeerInfo:
    info = peer()
    info.tensor_parallel_size = group.split.size
    info.rank_group.CopyFrom(group_to_wire(group))
    return info


def test_a_peer_may_be_divided_in_another_way() -> None:
    theirs = peer_of(divided())
    for ours in (peer(), theirs, peer_of(divided(4, ((4,),)))):
        check_compatible(ours, theirs)
        check_compatible(theirs, ours)
    assert group_of(theirs, LAYOUT) == divided()
    names = [rank.worker.name for rank in group_of(theirs, LAYOUT).ranks]
    assert names == ["prefill-0", "prefill-0.1", "prefill-0.2", "prefill-0.3"]
    holder = holder_of(replace(divided(), block_size=32), LAYOUT)
    assert [layout.num_layers for layout in holder.rank_layouts] == [1, 1, 3, 3]
    assert holder.layout.block_size == 32


def test_a_peer_of_an_old_version_is_one_rank_and_refuses_several() -> None:
    old = peer()
    old.protocol.minor = RANKS_MINOR - 1
    check_compatible(peer(), old)
    assert group_of(old, LAYOUT).split == KVSplit.of(LAYOUT)
    for ours, theirs in [(old, peer_of(divided())), (peer_of(divided()), old)]:
        with pytest.raises(IncompatiblePeerError, match="tensor_parallel_size"):
            check_compatible(ours, theirs)
    unnamed = peer_of(divided())
    unnamed.ClearField("rank_group")
    with pytest.raises(IncompatiblePeerError, match="tensor_parallel_size"):
        check_compatible(peer(), unnamed)


def test_ranks_that_do_not_make_a_worker_are_refused() -> None:
    for group, change in [
        (divided(stages=((1,), (2,))), {}),
        (divided(stages=((4, 1),)), {}),
        (divided(), {"tensor_parallel_size": 3}),
    ]:
        info = peer_of(group)
        for name, value in change.items():
            setattr(info, name, value)
        with pytest.raises(InvalidRequestError, match="prefill-0") as refusal:
            group_of(info, LAYOUT)
        assert refusal.value.param == "rank_group"


def test_ranks_are_those_of_their_worker() -> None:
    """A rank of another life of the worker would be sent what this one cannot use."""
    info = peer_of(divided())
    info.rank_group.ranks[2].worker.incarnation = "older"
    with pytest.raises(InvalidRequestError, match="rank 2 says that it is"):
        group_of(info, LAYOUT)


def test_ranks_do_not_excuse_another_layout_or_model() -> None:
    for field, value in [("layout.version", 2), ("model_fingerprint", "beef")]:
        theirs = peer_of(divided())
        holder: object = theirs
        *path, name = field.split(".")
        for step in path:
            holder = getattr(holder, step)
        setattr(holder, name, value)
        with pytest.raises(IncompatiblePeerError, match=field):
            check_compatible(peer_of(divided(4, ((4,),))), theirs)


def test_tickets_of_ranks_travel_with_their_ranks() -> None:
    ticket = Ticket(
        transfer_id=bytes(16),
        connector="zmq",
        address="tcp://host:1",
        request_id="request-1",
        sender=WorkerId("prefill-0.1", "abc"),
        receiver=WorkerId("decode-0", "def"),
        num_blocks=3,
        layout=LAYOUT,
    )
    tickets = {(1, 0): ticket, (0, 2): replace(ticket, transfer_id=bytes(15) + b"x")}
    messages = tickets_to_wire(tickets)
    assert [message.sender_rank for message in messages] == [0, 1]
    assert tickets_from_wire(messages) == tickets
    with pytest.raises(InvalidRequestError, match=r"two tickets for ranks \(0, 2\)"):
        tickets_from_wire([messages[0], *messages])
