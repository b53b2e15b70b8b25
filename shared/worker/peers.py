"""The peers that this worker has shaken hands with, and how blocks come from each."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from baton.v1 import transfer_pb2, transfer_pb2_grpc
from shared.errors import IncompatiblePeerError
from shared.rpc.status import from_rpc_error
from shared.rpc.wire import worker_id_from_wire
from shared.worker.compatibility import check_compatible
from shared.worker.wire import offer_from_wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.connector.base import Connector
    from shared.identity import WorkerId
    from shared.rpc.channel import ChannelPool

HANDSHAKE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A worker whose blocks we can take, and the connector that brings them."""

    worker: WorkerId
    address: str
    connector: Connector


class PeerBook:
    """Handshakes once with every incarnation of every peer, and remembers the outcome."""

    def __init__(
        self,
        *,
        info: transfer_pb2.PeerInfo,
        connectors: Sequence[Connector],
        channels: ChannelPool,
    ) -> None:
        self._info = info
        self._connectors = {connector.name: connector for connector in connectors}
        self._channels = channels
        self._peers: dict[str, Peer] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def meet(self, worker: WorkerId, address: str) -> Peer:
        """The peer at `address`, after a handshake if this incarnation is new to us.

        Raises:
            IncompatiblePeerError: one side refused, or no connector reaches from it to us.
            WorkerLostError: it cannot be reached.
        """
        async with self._locks.setdefault(address, asyncio.Lock()):
            known = self._peers.get(address)
            if known is None or known.worker != worker:
                known = await self._handshake(address)
                self._peers[address] = known
            return known

    def forget(self, address: str) -> None:
        """Shake hands again before the next transfer: the peer failed us."""
        self._peers.pop(address, None)

    async def _handshake(self, address: str) -> Peer:
        stub = transfer_pb2_grpc.TransferStub(self._channels.get(address))
        request = transfer_pb2.HandshakeRequest(peer=self._info)
        try:
            response = await stub.Handshake(request, timeout=HANDSHAKE_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, peer=address) from error
        check_compatible(self._info, response.peer)
        worker = worker_id_from_wire(response.peer.worker)
        for offer in map(offer_from_wire, response.peer.offers):
            if offer.connector in self._connectors:
                self._connectors[offer.connector].meet(worker, offer)
        for name in response.reachable:
            if name in self._connectors:
                return Peer(
                    worker=worker,
                    address=address,
                    connector=self._connectors[name],
                )
        raise IncompatiblePeerError(
            "connectors",
            ours=sorted(self._connectors),
            theirs=list(response.reachable),
            peer=address,
        )
