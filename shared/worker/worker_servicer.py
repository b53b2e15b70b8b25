"""The Worker service: the worker's description, its load, and its draining."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc

from baton.v1 import worker_pb2, worker_pb2_grpc
from shared.directory.wire import adapter_state_to_wire
from shared.errors import InvalidRequestError
from shared.request.adapter_ref import adapter_to_wire
from shared.rpc.wire import role_from_wire, role_to_wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.engine.thread.engine_thread import EngineThread
    from shared.identity import Role
    from shared.worker.adapters import WorkerAdapters
    from shared.worker.health.gate import RequestGate
    from shared.worker.health.release_meter import ReleaseMeter
    from shared.worker.roles import WorkerRoles

Context = grpc.aio.ServicerContext[object, object]


class WorkerServicer(worker_pb2_grpc.WorkerServicer):
    """The servicer of prefill and decode workers."""

    def __init__(
        self,
        *,
        info: worker_pb2.GetInfoResponse,
        engine: EngineThread,
        gate: RequestGate,
        num_open_transfers: Callable[[], int],
        releases: ReleaseMeter,
        adapters: WorkerAdapters,
        roles: WorkerRoles,
    ) -> None:
        self._info = info
        self._engine = engine
        self._gate = gate
        self._num_open_transfers = num_open_transfers
        self._releases = releases
        self._adapters = adapters
        self._roles = roles

    async def GetInfo(  # noqa: N802 the name in the contract
        self, request: worker_pb2.GetInfoRequest, context: Context
    ) -> worker_pb2.GetInfoResponse:
        """Return the worker's description, constant for this incarnation."""
        return self._info

    async def GetLoad(  # noqa: N802 the name in the contract
        self, request: worker_pb2.GetLoadRequest, context: Context
    ) -> worker_pb2.GetLoadResponse:
        """Return the load as of the engine's last step."""
        stats = self._engine.stats()
        return worker_pb2.GetLoadResponse(
            num_running=stats.num_running,
            num_waiting=stats.num_waiting,
            num_receiving=stats.num_receiving,
            num_held=stats.num_held,
            num_blocks=stats.num_blocks,
            num_free_blocks=stats.num_free_blocks,
            num_cached_blocks=stats.num_cached_blocks,
            num_open_transfers=self._num_open_transfers(),
            counters=stats.counters,
            num_requests=self._gate.num_inside,
            draining=self._gate.draining,
            unhealthy=self._gate.unhealthy,
            max_release_s=self._releases.max_s,
            preference=role_to_wire(self._roles.preference),
        )

    async def Drain(  # noqa: N802 the name in the contract
        self, request: worker_pb2.DrainRequest, context: Context
    ) -> worker_pb2.DrainResponse:
        """Take no new work; answer when the last request has ended."""
        return worker_pb2.DrainResponse(num_unfinished=await self._gate.drain(request.grace_s))

    async def Prefer(  # noqa: N802 the name in the contract
        self, request: worker_pb2.PreferRequest, context: Context
    ) -> worker_pb2.PreferResponse:
        """Change the role for which routers prefer the worker."""
        role = wanted_role(request)
        from_step = await self._roles.prefer(role, context.time_remaining())
        return worker_pb2.PreferResponse(
            role=role_to_wire(role), from_step=from_step, limits=self._roles.limits
        )

    async def ResetPrefixCache(  # noqa: N802 the name in the contract
        self, request: worker_pb2.ResetPrefixCacheRequest, context: Context
    ) -> worker_pb2.ResetPrefixCacheResponse:
        """Drop every cached prefix."""
        num_blocks = await self._engine.reset_prefix_cache()
        return worker_pb2.ResetPrefixCacheResponse(num_blocks=num_blocks)

    async def LoadAdapter(  # noqa: N802 the name in the contract
        self, request: worker_pb2.LoadAdapterRequest, context: Context
    ) -> worker_pb2.LoadAdapterResponse:
        """Load an adapter, and tell the directories of it soon."""
        known, replaced = await asyncio.to_thread(
            self._adapters.load,
            request.name,
            request.path,
            replace=request.load_inplace,
            digest=request.digest,
        )
        self._gate.report()
        return worker_pb2.LoadAdapterResponse(
            adapter=adapter_to_wire(known.ref),
            rank=known.rank,
            load_ms=known.load_ms,
            replaced=None if replaced is None else adapter_to_wire(replaced),
        )

    async def UnloadAdapter(  # noqa: N802 the name in the contract
        self, request: worker_pb2.UnloadAdapterRequest, context: Context
    ) -> worker_pb2.UnloadAdapterResponse:
        """Take an adapter's name away, and tell the directories of it soon."""
        adapter = self._adapters.required().unload(request.name, request.digest)
        use = self._engine.stats().adapters
        num = 0
        if use is not None:
            num = use.running.get(adapter.digest, 0) + use.waiting.get(adapter.digest, 0)
        self._gate.report()
        return worker_pb2.UnloadAdapterResponse(adapter=adapter_to_wire(adapter), num_requests=num)

    async def ListAdapters(  # noqa: N802 the name in the contract
        self, request: worker_pb2.ListAdaptersRequest, context: Context
    ) -> worker_pb2.ListAdaptersResponse:
        """Return the adapters that have a name."""
        states = self._adapters.states(self._engine.stats())
        return worker_pb2.ListAdaptersResponse(
            adapters=[adapter_state_to_wire(each) for each in states],
            max_adapters=self._adapters.max_adapters,
        )


def wanted_role(request: worker_pb2.PreferRequest) -> Role:
    """Return the role of an order.

    Raises:
        InvalidRequestError: it has none that is known.
    """
    role = role_from_wire(request.role)
    if role is None:
        raise InvalidRequestError("role must be prefill or decode", param="role")
    return role
