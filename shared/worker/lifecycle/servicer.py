"""The Lifecycle service: orders from routers. Served in every stage."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from baton.v1 import lifecycle_pb2, lifecycle_pb2_grpc
from shared.errors import InvalidRequestError
from shared.rpc.wire import worker_id_to_wire
from shared.worker.lifecycle.stage import PauseMode, SleepLevel, Stage
from shared.worker.lifecycle.weights import WeightSource

if TYPE_CHECKING:
    from shared.worker.lifecycle.lifecycle import Lifecycle
    from shared.worker.lifecycle.profiling import Profiling

Context = grpc.aio.ServicerContext[object, object]

_STAGES = {
    Stage.SERVING: lifecycle_pb2.STAGE_SERVING,
    Stage.LOADED: lifecycle_pb2.STAGE_LOADED,
    Stage.ASLEEP: lifecycle_pb2.STAGE_ASLEEP,
}
_MODES = {
    lifecycle_pb2.PAUSE_MODE_ABORT: PauseMode.ABORT,
    lifecycle_pb2.PAUSE_MODE_WAIT: PauseMode.WAIT,
    lifecycle_pb2.PAUSE_MODE_KEEP: PauseMode.KEEP,
}


class LifecycleServicer(lifecycle_pb2_grpc.LifecycleServicer):
    """The servicer of prefill and decode workers."""

    def __init__(self, lifecycle: Lifecycle, profiling: Profiling) -> None:
        self._lifecycle = lifecycle
        self._profiling = profiling

    async def GetState(  # noqa: N802 the name in the contract
        self, request: lifecycle_pb2.GetStateRequest, context: Context
    ) -> lifecycle_pb2.GetStateResponse:
        """Return the present stage."""
        cycle = self._lifecycle
        state = lifecycle_pb2.GetStateResponse(
            stage=_STAGES[cycle.stage],
            paused=cycle.paused,
            weight_version=cycle.source.version,
            generation=cycle.source.generation,
            prepared=cycle.prepared,
            leased=cycle.is_leased,
        )
        if cycle.life is None or cycle.turning.is_set():
            state.stage = lifecycle_pb2.STAGE_CHANGING
        else:
            state.worker.CopyFrom(worker_id_to_wire(cycle.life.worker))
        return state

    async def Pause(  # noqa: N802 the name in the contract
        self, request: lifecycle_pb2.PauseRequest, context: Context
    ) -> lifecycle_pb2.PauseResponse:
        """Hold new requests; answer when no running one computes."""
        await self._lifecycle.pause(pause_mode(request), request.timeout_s, request.lease_s)
        return lifecycle_pb2.PauseResponse()

    async def KeepPaused(  # noqa: N802 the name in the contract
        self, request: lifecycle_pb2.KeepPausedRequest, context: Context
    ) -> lifecycle_pb2.KeepPausedResponse:
        """Begin the pause's lease anew."""
        self._lifecycle.keep_paused()
        return lifecycle_pb2.KeepPausedResponse()

    async def Resume(  # noqa: N802 the name in the contract
        self, request: lifecycle_pb2.ResumeRequest, context: Context
    ) -> lifecycle_pb2.ResumeResponse:
        """Let requests go on."""
        await self._lifecycle.resume()
        return lifecycle_pb2.ResumeResponse()

    async def Sleep(  # noqa: N802 the name in the contract
        self, request: lifecycle_pb2.SleepRequest, context: Context
    ) -> lifecycle_pb2.SleepResponse:
        """End all requests; return the memory of weights and KV."""
        try:
            level = SleepLevel(request.level)
        except ValueError as error:
            message = f"level must be 1 or 2, not {request.level}"
            raise InvalidRequestError(message, param="level") from error
        await self._lifecycle.sleep(level)
        return lifecycle_pb2.SleepResponse()

    async def WakeUp(  # noqa: N802 the name in the contract
        self, request: lifecycle_pb2.WakeUpRequest, context: Context
    ) -> lifecycle_pb2.WakeUpResponse:
        """Undo `Sleep`."""
        cycle = self._lifecycle
        if request.kv_cache and not request.weights and cycle.stage is Stage.ASLEEP:
            raise InvalidRequestError("kv_cache needs weights: wake them up first", param="tags")
        await cycle.wake_up(kv_cache=request.kv_cache)
        return lifecycle_pb2.WakeUpResponse(stage=_STAGES[cycle.stage])

    async def PrepareWeights(  # noqa: N802 the name in the contract
        self, request: lifecycle_pb2.PrepareWeightsRequest, context: Context
    ) -> lifecycle_pb2.PrepareWeightsResponse:
        """Load weights beside the present ones."""
        given = request.source
        source = WeightSource(Path(given.path), given.version, given.generation)
        identity = await self._lifecycle.prepare(request.update, source, request.hold_s)
        return lifecycle_pb2.PrepareWeightsResponse(identity=identity)

    async def CommitWeights(  # noqa: N802 the name in the contract
        self, request: lifecycle_pb2.CommitWeightsRequest, context: Context
    ) -> lifecycle_pb2.CommitWeightsResponse:
        """Replace the present weights by prepared ones."""
        worker = await self._lifecycle.commit(request.update)
        return lifecycle_pb2.CommitWeightsResponse(worker=worker_id_to_wire(worker))

    async def DropWeights(  # noqa: N802 the name in the contract
        self, request: lifecycle_pb2.DropWeightsRequest, context: Context
    ) -> lifecycle_pb2.DropWeightsResponse:
        """Drop prepared weights."""
        self._lifecycle.drop(request.update)
        return lifecycle_pb2.DropWeightsResponse()

    async def StartProfile(  # noqa: N802 the name in the contract
        self, request: lifecycle_pb2.StartProfileRequest, context: Context
    ) -> lifecycle_pb2.StartProfileResponse:
        """Begin to record what the worker computes."""
        await self._profiling.start(request.prefix)
        return lifecycle_pb2.StartProfileResponse()

    async def StopProfile(  # noqa: N802 the name in the contract
        self, request: lifecycle_pb2.StopProfileRequest, context: Context
    ) -> lifecycle_pb2.StopProfileResponse:
        """End the record, and write its file."""
        return lifecycle_pb2.StopProfileResponse(path=str(await self._profiling.stop()))


def pause_mode(request: lifecycle_pb2.PauseRequest) -> PauseMode:
    """Return the mode of an order.

    Raises:
        InvalidRequestError: it is unset, or newer than this software.
    """
    if request.mode not in _MODES:
        raise InvalidRequestError("mode must be set", param="mode")
    return _MODES[request.mode]
