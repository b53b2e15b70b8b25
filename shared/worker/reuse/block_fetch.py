"""Transfer of blocks from a peer's cache into ours: reserve, open, request, verify."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from baton.v1 import transfer_pb2, transfer_pb2_grpc
from shared.errors import TransferError, TransferFailure
from shared.rpc.cancellation import run_to_end
from shared.rpc.status import from_rpc_error
from shared.worker.peers.incoming import close_inbound, open_incoming
from shared.worker.reuse.reservation import Reservation, publish, reserve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.connector.group.base import Arrived
    from shared.engine.thread.engine_thread import EngineThread
    from shared.kv.layout import KVLayout
    from shared.rpc.channel import ChannelPool
    from shared.worker.peers.peers import Peer


class NoRoomError(Exception):
    """Running sequences need the blocks."""


@dataclass(frozen=True, slots=True)
class FetchedBlocks:
    """Blocks in the cache, which stay there until `pin_id` is released."""

    pin_id: int
    num_blocks: int
    num_bytes: int
    duration_ms: float


class BlockFetcher:
    """One instance per worker; fetches are independent of each other."""

    def __init__(self, *, engine: EngineThread, layout: KVLayout, channels: ChannelPool) -> None:
        self._engine = engine
        self._layout = layout
        self._channels = channels

    async def lookup(
        self, peer: Peer, block_hashes: Sequence[bytes], timeout_s: float, *, first_block: int
    ) -> int:
        """Return how many of these consecutive blocks the peer has now, from the first on.

        The first of them is block `first_block` of its prefix.

        Raises:
            BatonError: it did not answer.
        """
        request = transfer_pb2.LookupRequest(block_hashes=block_hashes, first_block=first_block)
        try:
            response = await self._stub(peer).Lookup(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, peer=str(peer.worker)) from error
        return min(response.num_blocks, len(block_hashes))

    async def fetch(
        self,
        peer: Peer,
        block_hashes: Sequence[bytes],
        *,
        first_block: int,
        request_id: str,
        timeout_s: float,
    ) -> FetchedBlocks:
        """Fetch consecutive blocks of a prefix: all of them, or none.

        When this raises any error, the peer no longer writes to our blocks, and they are free.

        Raises:
            NoRoomError: nothing was requested.
            TransferError: with INCOMPLETE the peer does not have all; otherwise it failed.
            BatonError: the peer cannot be reached, or did not answer in time.
        """
        reservation = await reserve(self._engine, len(block_hashes), first_block)
        if reservation is None:
            raise NoRoomError(f"request {request_id}: no room for {len(block_hashes)} blocks")
        try:
            started_s = time.monotonic()
            wanted = transfer_pb2.SendRequest(
                block_hashes=block_hashes, first_block=first_block, request_id=request_id
            )
            arrived = await self._transfer(peer, reservation, wanted, timeout_s)
            duration_ms = (time.monotonic() - started_s) * 1e3
            await publish(self._engine, reservation, block_hashes)
        except BaseException:
            await run_to_end(self._engine.unpin(reservation.pin_id))
            raise
        return FetchedBlocks(reservation.pin_id, len(block_hashes), arrived.num_bytes, duration_ms)

    async def _transfer(
        self,
        peer: Peer,
        reservation: Reservation,
        wanted: transfer_pb2.SendRequest,
        timeout_s: float,
    ) -> Arrived:
        first, num_blocks = wanted.first_block, len(wanted.block_hashes)
        incoming = await open_incoming(
            peer,
            request_id=wanted.request_id,
            tables=reservation.blocks.tables,
            moved=self._layout.needed(first, num_blocks),
            num_tokens=(first + num_blocks) * self._layout.block_size,
            hand_off=peer.hand_off,
        )
        inbound = incoming.inbound
        arrival = asyncio.create_task(inbound.wait(timeout_s))
        try:
            wanted.ticket.CopyFrom(incoming.ticket)
            sent = await self._send(peer, wanted, timeout_s)
            return _verify(await arrival, sent, wanted.request_id)
        finally:
            await close_inbound(inbound, arrival)

    async def _send(
        self,
        peer: Peer,
        wanted: transfer_pb2.SendRequest,
        timeout_s: float,
    ) -> transfer_pb2.SendResponse:
        try:
            return await self._stub(peer).Send(wanted, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, peer=str(peer.worker)) from error

    def _stub(self, peer: Peer) -> transfer_pb2_grpc.TransferAsyncStub:
        return transfer_pb2_grpc.TransferStub(self._channels.get(peer.address))


def _verify(arrived: Arrived, sent: transfer_pb2.SendResponse, request_id: str) -> Arrived:
    """Check the sender's account, which came by another channel, against the received blocks."""
    if (sent.digest, sent.num_blocks) != (arrived.digest, arrived.num_blocks):
        raise TransferError(
            TransferFailure.CORRUPT,
            f"request {request_id}: sent {sent.num_blocks} blocks with digest {sent.digest:016x}, "
            f"received {arrived.num_blocks} with {arrived.digest:016x}",
        )
    return arrived
