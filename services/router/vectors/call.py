"""One call of `Prefill.Pool`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc

from baton.v1 import prefill_pb2, prefill_pb2_grpc
from shared.errors import RequestCancelledError, WorkerLostError
from shared.pooling.wire import task_to_wire
from shared.request.adapter_ref import adapter_to_wire
from shared.rpc.status import from_rpc_error

if TYPE_CHECKING:
    from services.router.vectors.request import VectorRequest
    from services.router.workers.endpoint import Endpoint
    from shared.rpc.channel import ChannelPool


class PoolCaller:
    """Calls prefill workers over the router's channels."""

    def __init__(self, channels: ChannelPool) -> None:
        self._channels = channels

    async def __call__(
        self, endpoint: Endpoint, message: prefill_pb2.PoolRequest, *, timeout_s: float
    ) -> prefill_pb2.PoolResponse:
        """Return the worker's answer. Cancelling this cancels the request there.

        Raises:
            BatonError: the worker's error; WorkerLostError if the worker is gone.
        """
        stub: prefill_pb2_grpc.PrefillAsyncStub = prefill_pb2_grpc.PrefillStub(
            self._channels.get(endpoint.record.address)
        )
        call = stub.Pool(message, timeout=timeout_s)
        try:
            return await call
        except grpc.RpcError as error:
            meaning = from_rpc_error(error, peer=str(endpoint))
            if isinstance(meaning, RequestCancelledError):
                # The router did not cancel, so the worker is ending.
                raise WorkerLostError(str(meaning)) from error
            raise meaning from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # grpc raises it for a call whose channel was closed.
            raise WorkerLostError(f"the channel to {endpoint} was closed") from error


def pool_message(request: VectorRequest, index: int, *, suffix: str) -> prefill_pb2.PoolRequest:
    """Return the message for one text. `suffix`: makes the ids of attempts differ.

    A worker that has not noticed the loss may still run the previous attempt.
    """
    text = request.inputs[index]
    return prefill_pb2.PoolRequest(
        request_id=f"{request.request_id}-{index}{suffix}",
        token_ids=text.token_ids,
        token_type_ids=text.token_type_ids,
        task=task_to_wire(request.task),
        normalize=request.normalize,
        dimensions=request.dimensions,
        activate=request.activate,
        cache_salt=request.cache_salt,
        priority=request.priority,
        adapter=None if request.adapter is None else adapter_to_wire(request.adapter),
    )
