"""What operators can have all workers do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import structlog

from baton.v1 import worker_pb2, worker_pb2_grpc
from shared.identity import Role
from shared.rpc.status import from_rpc_error

if TYPE_CHECKING:
    from services.router.workers.endpoint import Endpoint
    from services.router.workers.endpoints import EndpointPool
    from shared.rpc.channel import ChannelPool

log = structlog.get_logger(__name__)

#: A reset waits for the engine's step.
TIMEOUT_S = 10.0


class WorkerControl:
    """Describes the live workers and sends them an operator's commands."""

    def __init__(self, endpoints: EndpointPool, channels: ChannelPool) -> None:
        self._endpoints = endpoints
        self._channels = channels

    def describe(self) -> list[dict[str, Any]]:
        """Return what is known of each live worker."""
        return [
            {
                "name": str(each.record.worker),
                "model": each.record.model,
                "role": each.record.role.value,
                "preference": each.preference.value,
                "address": each.record.address,
                "usable": each.usable,
                "max_model_len": each.record.max_model_len,
            }
            for each in self._all()
        ]

    async def reset_prefix_cache(self) -> bool:
        """Have every worker drop its cached prefixes; return whether all did.

        A worker whose blocks are in use drops nothing; one that sleeps has none.
        """
        awake = [each for each in self._all() if not each.record.sleeps]
        done = await asyncio.gather(*(self._reset(each) for each in awake))
        return all(done)

    def _all(self) -> list[Endpoint]:
        return [each for role in Role for each in self._endpoints.of_role(role)]

    async def _reset(self, endpoint: Endpoint) -> bool:
        record = endpoint.record
        stub = worker_pb2_grpc.WorkerStub(self._channels.get(record.address))
        request = worker_pb2.ResetPrefixCacheRequest()
        try:
            answer = await stub.ResetPrefixCache(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            reason = str(from_rpc_error(error, peer=str(record.worker)))
            log.warning("reset_failed", worker=str(record.worker), error=reason)
            return False
        log.info("reset", worker=str(record.worker), num_blocks=answer.num_blocks)
        return True
