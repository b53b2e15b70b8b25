"""Whether two workers may exchange KV blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import IncompatiblePeerError
from shared.kv.hand_off import fit
from shared.rpc.protocol import BLOCK_SIZES_MINOR, RANKS_MINOR

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.v1 import transfer_pb2


#: Fields of a layout, in the order in which a difference is named.
_LAYOUT = ("num_layers", "num_kv_heads", "head_dim", "dtype", "scales", "block_size", "version")


def check_compatible(ours: transfer_pb2.PeerInfo, theirs: transfer_pb2.PeerInfo) -> None:
    """Check that two workers may exchange blocks; their minor versions may differ.

    So may their ranks, and their block sizes if one is a multiple of the other, if both know of
    such peers.

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
    has_other_blocks = ours.layout.block_size != theirs.layout.block_size and _fit(ours, theirs)
    for name in _LAYOUT:
        if name != "block_size" or not has_other_blocks:
            yield f"layout.{name}", getattr(ours.layout, name), getattr(theirs.layout, name)
    yield "layout.groups", list(ours.layout.groups), list(theirs.layout.groups)
    if not _know_ranks(ours, theirs):
        yield "tensor_parallel_size", ours.tensor_parallel_size, theirs.tensor_parallel_size
    # The block size is in it, and nothing else that has not been compared.
    if not has_other_blocks:
        yield "namespace", ours.namespace, theirs.namespace


def _fit(*peers: transfer_pb2.PeerInfo) -> bool:
    """Return whether blocks of one of both consist of the other's, and both know what to do."""
    return _know(BLOCK_SIZES_MINOR, *peers) and fit(*(peer.layout.block_size for peer in peers))


def _know(minor: int, *peers: transfer_pb2.PeerInfo) -> bool:
    return all(peer.protocol.minor >= minor for peer in peers)


def _know_ranks(*peers: transfer_pb2.PeerInfo) -> bool:
    """Return whether each peer says how it is divided, if it is, and knows what that means."""
    return _know(RANKS_MINOR, *peers) and all(
        (peer.tensor_parallel_size == 1) != peer.HasField("rank_group") for peer in peers
    )
