"""Whether two workers may exchange KV blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import IncompatiblePeerError
from shared.rpc.protocol import RANKS_MINOR

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.v1 import transfer_pb2


#: Fields of a layout, in the order in which a difference is named.
_LAYOUT = ("num_layers", "num_kv_heads", "head_dim", "dtype", "scales", "block_size", "version")


def check_compatible(ours: transfer_pb2.PeerInfo, theirs: transfer_pb2.PeerInfo) -> None:
    """Check that two workers may exchange blocks; their minor versions may differ.

    So may their ranks, if both know of such peers.

    Raises:
        IncompatiblePeerError: naming the first field that differs.
    """
    peer = f"{theirs.worker.name}@{theirs.worker.incarnation}"
    for field, our_value, their_value in _compared(ours, theirs):
        if our_value != their_value:
            raise IncompatiblePeerError(field, ours=our_value, theirs=their_value, peer=peer)


def _compared(
    ours: transfer_pb2.PeerInfo, theirs: transfer_pb2.PeerInfo
) -> Iterator[tuple[str, object, object]]:
    yield "protocol.major", ours.protocol.major, theirs.protocol.major
    yield "model_fingerprint", ours.model_fingerprint, theirs.model_fingerprint
    for name in _LAYOUT:
        yield f"layout.{name}", getattr(ours.layout, name), getattr(theirs.layout, name)
    yield "layout.groups", list(ours.layout.groups), list(theirs.layout.groups)
    if not _know_ranks(ours, theirs):
        yield "tensor_parallel_size", ours.tensor_parallel_size, theirs.tensor_parallel_size
    yield "namespace", ours.namespace, theirs.namespace


def _know_ranks(*peers: transfer_pb2.PeerInfo) -> bool:
    """Return whether each peer says how it is divided, if it is, and knows what that means."""
    return all(
        peer.protocol.minor >= RANKS_MINOR
        and (peer.tensor_parallel_size == 1) != peer.HasField("rank_group")
        for peer in peers
    )
