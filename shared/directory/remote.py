"""The workers' client of the directory in a router, over gRPC."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import grpc
import structlog

from baton.v1 import directory_pb2, directory_pb2_grpc
from shared.directory.watchers import poll_changes
from shared.directory.wire import (
    load_to_wire,
    record_to_wire,
    status_from_wire,
    tier_to_wire,
    tiers_to_wire,
)
from shared.kv.tier import BlockTier
from shared.rpc.status import from_rpc_error
from shared.rpc.wire import worker_id_from_wire, worker_id_to_wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence

    from shared.directory.base import BlockUpdate, RegistryEvent, WorkerLoad, WorkerRecord
    from shared.identity import WorkerId

log = structlog.get_logger(__name__)

TIMEOUT_S = 5.0
#: A router takes in the snapshots of all its workers one by one.
SNAPSHOT_TIMEOUT_S = 60.0
POLL_S = 1.0
#: Of all tiers; 34 bytes each on the wire: a message stays below the size that servers accept.
MAX_HASHES_PER_MESSAGE = 400_000
_PEER = "directory"


class RemoteDirectory:
    """WorkerRegistry and BlockDirectory over gRPC.

    Every failure of the connection is an UnavailableError or a DeadlineError.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        timeout_s: float = TIMEOUT_S,
        poll_s: float = POLL_S,
        max_hashes: int = MAX_HASHES_PER_MESSAGE,
    ) -> None:
        self._stub = directory_pb2_grpc.DirectoryStub(channel)
        self._timeout_s = timeout_s
        self._poll_s = poll_s
        self._max_hashes = max_hashes

    async def register(self, record: WorkerRecord, lease_s: float) -> None:
        """See WorkerRegistry."""
        request = directory_pb2.RegisterRequest(record=record_to_wire(record), lease_s=lease_s)
        await _checked(self._stub.Register(request, timeout=self._timeout_s))

    async def heartbeat(self, worker: WorkerId, load: WorkerLoad) -> None:
        """See WorkerRegistry."""
        request = directory_pb2.HeartbeatRequest(
            worker=worker_id_to_wire(worker), load=load_to_wire(load)
        )
        await _checked(self._stub.Heartbeat(request, timeout=self._timeout_s))

    async def deregister(self, worker: WorkerId) -> None:
        """See WorkerRegistry."""
        request = directory_pb2.DeregisterRequest(worker=worker_id_to_wire(worker))
        await _checked(self._stub.Deregister(request, timeout=self._timeout_s))

    async def workers(self) -> list[RegistryEvent]:
        """See WorkerRegistry."""
        request = directory_pb2.ListWorkersRequest()
        response = await _checked(self._stub.ListWorkers(request, timeout=self._timeout_s))
        return [status_from_wire(status) for status in response.workers]

    async def watch(self) -> AsyncIterator[RegistryEvent]:
        """See WorkerRegistry.

        Polls every `poll_s`, so a worker that joins and leaves in between is missed.
        """
        async with aclosing(poll_changes(self.workers, self._poll_s)) as changes:
            async for event in changes:
                yield event

    async def publish(self, update: BlockUpdate) -> None:
        """See BlockDirectory."""
        request = directory_pb2.PublishRequest(
            worker=worker_id_to_wire(update.worker),
            sequence=update.sequence,
            stored=_bounded(update.worker, update.stored, self._max_hashes),
            removed=update.removed,
            cleared=update.cleared,
            tier=tier_to_wire(update.tier),
        )
        await _checked(self._stub.Publish(request, timeout=self._timeout_s))

    async def replace(
        self, worker: WorkerId, sequence: int, hashes: Mapping[BlockTier, Sequence[bytes]]
    ) -> None:
        """See BlockDirectory. What is too much for one message is left out, slowest tier first."""
        tiers: dict[BlockTier, Sequence[bytes]] = {}
        num_left = self._max_hashes
        for tier in BlockTier:
            tiers[tier] = _bounded(worker, hashes.get(tier, ()), num_left)
            num_left -= len(tiers[tier])
        request = directory_pb2.PublishRequest(
            worker=worker_id_to_wire(worker),
            sequence=sequence,
            stored=tiers.pop(BlockTier.DEVICE),
            other_tiers=tiers_to_wire({tier: held for tier, held in tiers.items() if held}),
            snapshot=True,
        )
        timeout_s = max(self._timeout_s, SNAPSHOT_TIMEOUT_S)
        await _checked(self._stub.Publish(request, timeout=timeout_s))

    async def lookup(self, hashes: Sequence[bytes]) -> dict[WorkerId, int]:
        """See BlockDirectory."""
        request = directory_pb2.LookupBlocksRequest(block_hashes=hashes)
        response = await _checked(self._stub.LookupBlocks(request, timeout=self._timeout_s))
        return {worker_id_from_wire(h.worker): h.num_blocks for h in response.holders}


def _bounded(worker: WorkerId, hashes: Sequence[bytes], max_hashes: int) -> Sequence[bytes]:
    """Limit a message's hashes: an unknown hash costs a miss, a refused message costs all."""
    if len(hashes) <= max_hashes:
        return hashes
    log.warning("too_many_hashes", worker=str(worker), num_left_out=len(hashes) - max_hashes)
    return hashes[:max_hashes]


async def _checked(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except grpc.RpcError as error:
        raise from_rpc_error(error, peer=_PEER) from error
