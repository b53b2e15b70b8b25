"""The Directory service: the embedded directory for workers of a cluster without Redis."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

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
    from collections.abc import Callable, Iterable, Sequence

    import grpc
    from google.protobuf.message import Message

    from services.router.processes.process import RouterProcess
    from shared.directory.base import BlockDirectory, RefusedWorker, WorkerRegistry

    Context = grpc.aio.ServicerContext[Any, Any]

HASH_BYTES = 32
#: What processes of a router ask each other.
_DIRECTORY = "directory"
#: Calls that change something, and their requests.
_RELAYED: dict[str, Any] = {
    "Register": directory_pb2.RegisterRequest,
    "Heartbeat": directory_pb2.HeartbeatRequest,
    "Deregister": directory_pb2.DeregisterRequest,
    "Publish": directory_pb2.PublishRequest,
}


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
        #: None: there are no other processes, or they know otherwise.
        self._process: RouterProcess | None = None
        self._registry = registry
        self._blocks = blocks
        self._refused = refused

    async def Register(  # noqa: N802
        self, request: directory_pb2.RegisterRequest, context: Context
    ) -> directory_pb2.RegisterResponse:
        """Register a worker."""
        await self._everywhere("Register", request)
        return directory_pb2.RegisterResponse()

    async def Heartbeat(  # noqa: N802
        self, request: directory_pb2.HeartbeatRequest, context: Context
    ) -> directory_pb2.HeartbeatResponse:
        """Renew a lease."""
        await self._everywhere("Heartbeat", request)
        return directory_pb2.HeartbeatResponse()

    async def Deregister(  # noqa: N802
        self, request: directory_pb2.DeregisterRequest, context: Context
    ) -> directory_pb2.DeregisterResponse:
        """Remove the request's worker at once, without waiting for its lease to end."""
        await self._everywhere("Deregister", request)
        return directory_pb2.DeregisterResponse()

    async def Publish(  # noqa: N802
        self, request: directory_pb2.PublishRequest, context: Context
    ) -> directory_pb2.PublishResponse:
        """Apply an update or a snapshot of a worker's blocks."""
        await self._everywhere("Publish", request)
        return directory_pb2.PublishResponse()

    def share(self, process: RouterProcess) -> None:
        """Tell the other processes of this router what workers say here, and hear from them.

        A worker has its answer when all have done as it said; their error is that of its call: a
        process that does not know the worker has it register again, with all.
        """
        self._process = process
        process.on_ask(_DIRECTORY, self._relayed)

    async def _relayed(self, body: Sequence[Any]) -> None:
        method, data = body
        await self._apply(method, _RELAYED[method].FromString(data))

    async def _everywhere(self, method: str, request: Message) -> None:
        if self._process is None:
            await self._apply(method, request)
            return
        for outcome in await asyncio.gather(
            self._apply(method, request),
            self._process.ask_others(_DIRECTORY, [method, request.SerializeToString()]),
            return_exceptions=True,
        ):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _apply(self, method: str, request: Any) -> None:
        match method:
            case "Register":
                await self._registry.register(record_from_wire(request.record), request.lease_s)
            case "Heartbeat":
                await self._registry.heartbeat(
                    worker_id_from_wire(request.worker), load_from_wire(request.load)
                )
            case "Deregister":
                await self._registry.deregister(worker_id_from_wire(request.worker))
            case _:
                await self._publish(request)

    async def _publish(self, request: directory_pb2.PublishRequest) -> None:
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
