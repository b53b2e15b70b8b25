"""The Lifecycle service of a worker that reads whole texts: it can pause, and keeps its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import grpc

from baton.v1 import lifecycle_pb2, lifecycle_pb2_grpc
from shared.errors import UnsupportedError
from shared.rpc.wire import worker_id_to_wire
from shared.worker.lifecycle.pause import Pause
from shared.worker.lifecycle.servicer import pause_mode
from shared.worker.lifecycle.weights import first_source

if TYPE_CHECKING:
    from shared.worker.lives.reading import Reader

Context = grpc.aio.ServicerContext[object, object]


class ReaderOrders(lifecycle_pb2_grpc.LifecycleServicer):
    """Pauses and resumes; refuses what changes weights, or gives their memory back."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._source = first_source(reader.config)
        self._pause = Pause(reader.pooler, reader.gate, reader.config.name)

    async def GetState(  # noqa: N802 the name in the contract
        self, request: lifecycle_pb2.GetStateRequest, context: Context
    ) -> lifecycle_pb2.GetStateResponse:
        """Return the stage, which never changes."""
        return lifecycle_pb2.GetStateResponse(
            worker=worker_id_to_wire(self._reader.worker),
            stage=lifecycle_pb2.STAGE_SERVING,
            paused=self._reader.gate.is_held,
            weight_version=self._source.version,
            generation=self._source.generation,
        )

    async def Pause(  # noqa: N802 the name in the contract
        self, request: lifecycle_pb2.PauseRequest, context: Context
    ) -> lifecycle_pb2.PauseResponse:
        """Hold new texts; answer when none is read."""
        await self._pause.begin(pause_mode(request), request.timeout_s)
        return lifecycle_pb2.PauseResponse()

    async def KeepPaused(  # noqa: N802 the name in the contract
        self, request: lifecycle_pb2.KeepPausedRequest, context: Context
    ) -> lifecycle_pb2.KeepPausedResponse:
        """Do nothing: only changes of weights have leases, and it takes none."""
        return lifecycle_pb2.KeepPausedResponse()

    async def Resume(  # noqa: N802 the name in the contract
        self, request: lifecycle_pb2.ResumeRequest, context: Context
    ) -> lifecycle_pb2.ResumeResponse:
        """Let texts go on."""
        await self._pause.end()
        return lifecycle_pb2.ResumeResponse()

    async def Sleep(  # noqa: N802 the name in the contract
        self, request: lifecycle_pb2.SleepRequest, context: Context
    ) -> lifecycle_pb2.SleepResponse:
        """Refuse."""
        self._refuse("does not sleep: stop it, and start it again")

    async def WakeUp(  # noqa: N802 the name in the contract
        self, request: lifecycle_pb2.WakeUpRequest, context: Context
    ) -> lifecycle_pb2.WakeUpResponse:
        """Do nothing: it is awake."""
        return lifecycle_pb2.WakeUpResponse(stage=lifecycle_pb2.STAGE_SERVING)

    async def PrepareWeights(  # noqa: N802 the name in the contract
        self, request: lifecycle_pb2.PrepareWeightsRequest, context: Context
    ) -> lifecycle_pb2.PrepareWeightsResponse:
        """Refuse."""
        self._refuse("takes no other weights: start one with them, then stop this one")

    async def CommitWeights(  # noqa: N802 the name in the contract
        self, request: lifecycle_pb2.CommitWeightsRequest, context: Context
    ) -> lifecycle_pb2.CommitWeightsResponse:
        """Refuse."""
        self._refuse("takes no other weights: start one with them, then stop this one")

    async def DropWeights(  # noqa: N802 the name in the contract
        self, request: lifecycle_pb2.DropWeightsRequest, context: Context
    ) -> lifecycle_pb2.DropWeightsResponse:
        """Do nothing: none are prepared."""
        return lifecycle_pb2.DropWeightsResponse()

    async def StartProfile(  # noqa: N802 the name in the contract
        self, request: lifecycle_pb2.StartProfileRequest, context: Context
    ) -> lifecycle_pb2.StartProfileResponse:
        """Refuse."""
        self._refuse("writes no profiles")

    async def StopProfile(  # noqa: N802 the name in the contract
        self, request: lifecycle_pb2.StopProfileRequest, context: Context
    ) -> lifecycle_pb2.StopProfileResponse:
        """Refuse."""
        self._refuse("writes no profiles")

    def _refuse(self, what: str) -> NoReturn:
        """Raise the error of an order.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(f"{self._reader.config.name} reads whole texts, and {what}")
