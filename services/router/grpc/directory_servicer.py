"""The Directory service: the embedded directory for workers of a cluster without Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.v1 import directory_pb2, directory_pb2_grpc
from shared.directory.base import BlockUpdate
from shared.directory.wire import (
    load_from_wire,
    record_from_wire,
    status_to_wire,
    tier_from_wire,
)
from shared.errors import InvalidRequestError
from shared.kv.tier import BlockTier
from shared.rpc.wire import worker_id_from_wire, worker_id_to_wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    import grpc

    from shared.directory.base import BlockDirectory, RefusedWorker, WorkerRegistry

    Context = grpc.aio.ServicerContext[Any, Any]

HASH_BYTES = 32


class DirectoryServicer(directory_pb2_grpc.DirectoryServicer):
    """Checks wire messages and passes them to the directory."""

    def __init__(
        self,
        registry: WorkerRegistry,
        blocks: BlockDirectory,
        *,
        refused: Callable[[], Iterable[RefusedWorker]] = tuple,
    ) -> None:
        """Serve `registry` and `blocks`. `refused` returns live workers that get no requests."""
        self._registry = registry
        self._blocks = blocks
        self._refused = refused

    async def Register(  # noqa: N802
        self, request: directory_pb2.RegisterRequest, context: Context
    ) -> directory_pb2.RegisterResponse:
        """Register a worker."""
        await self._registry.register(record_from_wire(request.record), request.lease_s)
        return directory_pb2.RegisterResponse()

    async def Heartbeat(  # noqa: N802
        self, request: directory_pb2.HeartbeatRequest, context: Context
    ) -> directory_pb2.HeartbeatResponse:
        """Renew a lease."""
        await self._registry.heartbeat(
            worker_id_from_wire(request.worker), load_from_wire(request.load)
        )
        return directory_pb2.HeartbeatResponse()

    async def Deregister(  # noqa: N802
        self, request: directory_pb2.DeregisterRequest, context: Context
    ) -> directory_pb2.DeregisterResponse:
        """Remove the request's worker at once, without waiting for its lease to end."""
        await self._registry.deregister(worker_id_from_wire(request.worker))
        return directory_pb2.DeregisterResponse()

    async def Publish(  # noqa: N802
        self, request: directory_pb2.PublishRequest, context: Context
    ) -> directory_pb2.PublishResponse:
        """Apply an update or a snapshot of a worker's blocks."""
        worker = worker_id_from_wire(request.worker)
        stored = _hashes(request.stored, "stored")
        if request.snapshot:
            tiers = {
                tier_from_wire(held.tier): _hashes(held.hashes, "other_tiers")
                for held in request.other_tiers
            }
            tiers[BlockTier.DEVICE] = stored
            await self._blocks.replace(worker, request.sequence, tiers)
        else:
            update = BlockUpdate(
                worker=worker,
                sequence=request.sequence,
                stored=stored,
                removed=_hashes(request.removed, "removed"),
                cleared=request.cleared,
                tier=tier_from_wire(request.tier),
            )
            await self._blocks.publish(update)
        return directory_pb2.PublishResponse()

    async def LookupBlocks(  # noqa: N802
        self, request: directory_pb2.LookupBlocksRequest, context: Context
    ) -> directory_pb2.LookupBlocksResponse:
        """Return the workers that hold a prefix."""
        found = await self._blocks.lookup(_hashes(request.block_hashes, "block_hashes"))
        holders = [
            directory_pb2.BlockHolder(worker=worker_id_to_wire(worker), num_blocks=num_blocks)
            for worker, num_blocks in found.items()
        ]
        return directory_pb2.LookupBlocksResponse(holders=holders)

    async def ListWorkers(  # noqa: N802
        self, request: directory_pb2.ListWorkersRequest, context: Context
    ) -> directory_pb2.ListWorkersResponse:
        """Return all live workers."""
        events = await self._registry.workers()
        refused = [
            directory_pb2.RefusedWorker(
                worker=worker_id_to_wire(each.worker), address=each.address, reason=each.reason
            )
            for each in self._refused()
        ]
        return directory_pb2.ListWorkersResponse(
            workers=[status_to_wire(e) for e in events], refused=refused
        )


def _hashes(values: Iterable[bytes], param: str) -> tuple[bytes, ...]:
    hashes = tuple(values)
    for value in hashes:
        if len(value) != HASH_BYTES:
            message = f"a block hash has {HASH_BYTES} bytes, not {len(value)}"
            raise InvalidRequestError(message, param=param)
    return hashes
