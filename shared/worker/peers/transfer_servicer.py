"""The Transfer service: handshakes, and sending cached blocks on request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

from baton.v1 import transfer_pb2, transfer_pb2_grpc
from shared.errors import TransferError, TransferFailure
from shared.rpc.cancellation import run_to_end
from shared.worker.peers.compatibility import check_compatible
from shared.worker.peers.ranks import group_of
from shared.worker.peers.wire import hashes_from_wire

if TYPE_CHECKING:
    from shared.engine.thread.engine_thread import EngineThread
    from shared.worker.peers.endpoints import Endpoints
    from shared.worker.peers.outgoing import Recipients

Context = grpc.aio.ServicerContext[object, object]

SEND_TIMEOUT_S = 30.0


class TransferServicer(transfer_pb2_grpc.TransferServicer):
    """The servicer of prefill and decode workers."""

    def __init__(
        self,
        *,
        info: transfer_pb2.PeerInfo,
        endpoints: Endpoints,
        recipients: Recipients,
        engine: EngineThread,
    ) -> None:
        self._info = info
        self._endpoints = endpoints
        self._recipients = recipients
        self._engine = engine

    async def Handshake(  # noqa: N802 the name in the contract
        self, request: transfer_pb2.HandshakeRequest, context: Context
    ) -> transfer_pb2.HandshakeResponse:
        """Refuse an incompatible peer, or return the connectors on which we can send to it.

        From then on it may order blocks.
        """
        check_compatible(self._info, request.peer)
        peer = group_of(request.peer, self._endpoints.holder.layout)
        names = await self._recipients.meet(peer)
        return transfer_pb2.HandshakeResponse(peer=self._info, reachable=names)

    async def Lookup(  # noqa: N802 the name in the contract
        self, request: transfer_pb2.LookupRequest, context: Context
    ) -> transfer_pb2.LookupResponse:
        """Return how many leading blocks are cached here now."""
        num_blocks = await self._engine.count_cached(
            hashes_from_wire(request.block_hashes), first_block=request.first_block
        )
        return transfer_pb2.LookupResponse(num_blocks=num_blocks)

    async def Send(  # noqa: N802 the name in the contract
        self, request: transfer_pb2.SendRequest, context: Context
    ) -> transfer_pb2.SendResponse:
        """Push cached blocks into the caller's ticket: all of them, or none."""
        hashes, first = hashes_from_wire(request.block_hashes), request.first_block
        order = self._recipients.order_prefix(request.ticket, first, len(hashes))
        # Blocks of lower tiers are loaded into the pool, from which connectors send.
        await self._engine.promote(hashes, first_block=first)
        pin, found = await self._engine.pin_cached(hashes, first_block=first)
        try:
            if found.num_blocks < len(hashes):
                raise TransferError(
                    TransferFailure.INCOMPLETE,
                    f"request {request.request_id}: {self._endpoints.worker} holds "
                    f"{found.num_blocks} of {len(hashes)} blocks",
                )
            timeout_s = min(SEND_TIMEOUT_S, context.time_remaining() or SEND_TIMEOUT_S)
            outbound = await order.connect(timeout_s)
            try:
                await outbound.push_all(found.tables)
                digest = await outbound.finish(timeout_s)
            finally:
                await run_to_end(outbound.abort())
        finally:
            await run_to_end(self._engine.unpin(pin))
        return transfer_pb2.SendResponse(
            digest=digest,
            num_blocks=outbound.num_blocks,
            num_bytes=outbound.num_bytes,
        )
