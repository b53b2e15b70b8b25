"""I14: incompatible peers refuse each other and say which field differs."""

from __future__ import annotations

import pytest

from baton.v1 import common_pb2, transfer_pb2
from shared.errors import IncompatiblePeerError
from shared.rpc.protocol import PROTOCOL_MAJOR, PROTOCOL_MINOR
from shared.worker.peers.compatibility import check_compatible


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
        ("layout.block_size", 32),
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
