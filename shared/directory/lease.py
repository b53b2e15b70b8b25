"""Renewal of a worker's lease in a thread of its own, over a connection of its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import grpc

from baton.v1 import directory_pb2, directory_pb2_grpc
from shared.directory.wire import load_to_wire
from shared.rpc.status import from_rpc_error
from shared.rpc.wire import worker_id_to_wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.directory.base import WorkerLoad
    from shared.directory.redis.directory import RedisDirectory
    from shared.directory.redis.store import RedisStore
    from shared.identity import WorkerId

#: Well below the length of a lease, so that a lost answer costs one renewal and not the lease.
TIMEOUT_S = 2.0


class Lease(Protocol):
    """One worker's lease in one directory. Every method blocks; call from one thread only."""

    def renew(self, load: WorkerLoad) -> None:
        """Renew the lease; raises as `WorkerRegistry.heartbeat`."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class RemoteLease:
    """A lease in a router's directory, by gRPC's blocking API: its thread has no event loop."""

    def __init__(self, worker: WorkerId, open_channel: Callable[[], grpc.Channel]) -> None:
        self._worker = worker
        self._channel = open_channel()
        self._stub = directory_pb2_grpc.DirectoryStub(self._channel)

    def renew(self, load: WorkerLoad) -> None:
        """See Lease."""
        request = directory_pb2.HeartbeatRequest(
            worker=worker_id_to_wire(self._worker), load=load_to_wire(load)
        )
        try:
            self._stub.Heartbeat(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            raise from_rpc_error(error, peer="directory") from error

    def close(self) -> None:
        """See Lease."""
        self._channel.close()


class RedisLease:
    """A lease in Redis. Its client needs an event loop, so the lease has one of its own."""

    def __init__(
        self, worker: WorkerId, open_store: Callable[[], RedisStore], directory: RedisDirectory
    ) -> None:
        """Open a lease. `directory` has the worker's registration and the number of its updates."""
        self._worker = worker
        self._open_store = open_store
        self._directory = directory
        self._loop = asyncio.new_event_loop()
        self._store: RedisStore | None = None

    def renew(self, load: WorkerLoad) -> None:
        """See Lease."""
        self._loop.run_until_complete(self._renew(load))

    def close(self) -> None:
        """See Lease."""
        if self._store is not None:
            self._loop.run_until_complete(self._store.close())
        self._loop.close()

    async def _renew(self, load: WorkerLoad) -> None:
        if self._store is None:
            self._store = self._open_store()
        await self._directory.renew_in(self._store, self._worker, load)
