"""The peers that this worker has shaken hands with, and the connector for each."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import grpc

from baton.v1 import transfer_pb2, transfer_pb2_grpc
from shared.errors import IncompatiblePeerError, WorkerLostError
from shared.rpc.protocol import ADAPTERS_MINOR, REPORTING_MINOR, STATES_MINOR
from shared.rpc.status import from_rpc_error
from shared.rpc.wire import worker_id_from_wire
from shared.worker.peers.compatibility import check_compatible
from shared.worker.peers.ranks import RankGroup, group_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.connector.base import Connector
    from shared.identity import WorkerId
    from shared.kv.hand_off import HandOff
    from shared.rpc.channel import ChannelPool
    from shared.worker.peers.endpoints import Endpoints

HANDSHAKE_TIMEOUT_S = 5.0
#: In so many slices of its layers a prompt's KV may be handed over.
NUM_SLICES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A worker that can send us blocks, and the connector for them."""

    worker: WorkerId
    address: str
    #: This worker, as the peer is to know it.
    receiver: WorkerId
    #: Name of the connector by which it reaches us, and ours of that name by rank.
    connector: str
    connectors: Sequence[Connector]
    #: What each of its ranks has for each of ours; None if whole blocks move, from one rank to one.
    hand_off: HandOff | None
    #: The same in `NUM_SLICES` slices; None if it could send none of them early.
    sliced: HandOff | None = None
    #: Whether we may fetch prefixes from it, and it from us: blocks of one size have one hash.
    shares_prefixes: bool = True
    #: Whether its silence is a failure: it reports that it still works, if requested.
    reports_progress: bool = True
    #: Whether it sends hidden states of the prompts that it computes: whole blocks, so that neither
    #: side may have several ranks, and both have blocks of one size.
    sends_states: bool = True
    #: Its ranks: one, unless it is divided.
    group: RankGroup
    #: Whether it computes with the adapter that a request names; else it would ignore the name.
    knows_adapters: bool = True


class PeerBook:
    """Handshakes once with every incarnation of every peer, and caches the result."""

    def __init__(
        self,
        *,
        info: transfer_pb2.PeerInfo,
        endpoints: Endpoints,
        channels: ChannelPool,
    ) -> None:
        #: What peers compare.
        self.info = info
        self._endpoints = endpoints
        self._channels = channels
        self._peers: dict[str, Peer] = {}
        self._handshakes: dict[str, asyncio.Task[Peer]] = {}

    async def meet(
        self, worker: WorkerId, address: str, *, timeout_s: float = HANDSHAKE_TIMEOUT_S
    ) -> Peer:
        """Return the peer at `address`, after a handshake if this incarnation is new.

        Concurrent calls for the same peer share one handshake: one after the other, the last call
        would wait for all timeouts of a silent peer.

        Raises:
            IncompatiblePeerError: one side refused, or no connector reaches from it to us.
            WorkerLostError: it cannot be reached, or not in time.
        """
        known = self._peers.get(address)
        if known is not None and known.worker == worker:
            return known
        handshake = self._handshakes.get(address)
        if handshake is None:
            handshake = self._handshakes[address] = asyncio.create_task(self._handshake(address))
            handshake.add_done_callback(partial(self._settle, address))
        await asyncio.wait({handshake}, timeout=timeout_s)
        if not handshake.done():
            raise WorkerLostError(f"{worker} at {address} did not answer within {timeout_s:g} s")
        return handshake.result()

    def _settle(self, address: str, handshake: asyncio.Task[Peer]) -> None:
        del self._handshakes[address]
        if not handshake.cancelled() and handshake.exception() is None:
            self._peers[address] = handshake.result()

    def forget(self, address: str) -> None:
        """Drop the cached handshake of a peer that failed."""
        self._peers.pop(address, None)

    async def _handshake(self, address: str) -> Peer:
        stub = transfer_pb2_grpc.TransferStub(self._channels.get(address))
        request = transfer_pb2.HandshakeRequest(peer=self.info)
        try:
            response = await stub.Handshake(request, timeout=HANDSHAKE_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, peer=address) from error
        check_compatible(self.info, response.peer)
        worker = worker_id_from_wire(response.peer.worker)
        ours = self._endpoints
        group = group_of(response.peer, ours.holder.layout)
        hand_off = ours.hand_off_from(group)
        ours.meet(group)
        for name in response.reachable:
            if ours.moves(name, hand_off):
                return Peer(
                    worker=worker,
                    address=address,
                    receiver=ours.worker,
                    connector=name,
                    connectors=ours.connectors[name],
                    hand_off=hand_off,
                    sliced=self._sliced(name, group, response.peer),
                    shares_prefixes=group.block_size == ours.holder.layout.block_size,
                    group=group,
                    reports_progress=response.peer.protocol.minor >= REPORTING_MINOR,
                    sends_states=response.peer.protocol.minor >= STATES_MINOR and hand_off is None,
                    knows_adapters=response.peer.protocol.minor >= ADAPTERS_MINOR,
                )
        raise IncompatiblePeerError(
            "connectors",
            ours=sorted(name for name in ours.connectors if ours.moves(name, hand_off)),
            theirs=list(response.reachable),
            peer=address,
        )

    def _sliced(
        self, connector: str, group: RankGroup, peer: transfer_pb2.PeerInfo
    ) -> HandOff | None:
        ours = self._endpoints
        takes_parts = all(one.takes_parts for one in ours.connectors[connector])
        return ours.slices_from(group, NUM_SLICES) if takes_parts and peer.sends_layers else None
