"""A pause of all workers: decode workers first, since their requests need prefill workers."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import TYPE_CHECKING

from baton.v1 import lifecycle_pb2
from services.router.fleet.orders import QUICK_S, succeeded
from shared.errors import BatonError
from shared.identity import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from services.router.admission.entrance import Entrance
    from services.router.fleet.orders import LifecycleOrders
    from services.router.workers.endpoint import Endpoint
    from services.router.workers.endpoints import EndpointPool


#: Workers go on by themselves when a router has not renewed its pause for this time.
LEASE_S = 15.0
RENEW_S = 3.0


class PauseMode(StrEnum):
    """What becomes of running requests; vLLM's names."""

    ABORT = "abort"
    WAIT = "wait"
    KEEP = "keep"


_MODES = {
    PauseMode.ABORT: lifecycle_pb2.PAUSE_MODE_ABORT,
    PauseMode.WAIT: lifecycle_pb2.PAUSE_MODE_WAIT,
    PauseMode.KEEP: lifecycle_pb2.PAUSE_MODE_KEEP,
}


class FleetPause:
    """Holds the requests of this router in its queue, and those of others at the workers."""

    def __init__(
        self,
        endpoints: EndpointPool,
        orders: LifecycleOrders,
        admission: Entrance,
        *,
        abort_answers: Callable[[], None],
    ) -> None:
        """`abort_answers`: ends all answers of this router with the finish reason `abort`."""
        self._endpoints = endpoints
        self._orders = orders
        self._admission = admission
        self._abort_answers = abort_answers
        self._renewing: asyncio.Task[None] | None = None

    async def begin(self, mode: PauseMode, timeout_s: float, *, leased: bool = False) -> None:
        """Return when no worker computes.

        `leased`: workers go on by themselves if this router is lost before `end`.

        With ABORT, this router's answers end with the finish reason `abort`, and other routers send
        their requests again after the pause.

        Raises:
            BatonError: a worker did not pause in time; all go on.
        """
        self._admission.hold()
        request = lifecycle_pb2.PauseRequest(
            mode=_MODES[mode], timeout_s=timeout_s, lease_s=LEASE_S if leased else 0.0
        )
        if leased:
            self._renewing = asyncio.create_task(self._renew())
        try:
            if mode is PauseMode.ABORT:
                self._abort_answers()
            # Chosen at once: none is left out that changes its preference meanwhile.
            groups = [self._endpoints.of_role(role) for role in (Role.DECODE, Role.PREFILL)]
            if mode is PauseMode.WAIT:
                # After a pause, requests that decode workers finish now need prefill workers.
                await self._resume(groups[1])
            for group in groups:
                answers = await self._orders.each(
                    group, lambda stub: stub.Pause(request, timeout=timeout_s + QUICK_S)
                )
                succeeded(answers)
        except BaseException:
            await self.end()
            raise

    async def end(self) -> list[BatonError]:
        """Let all go on; return the errors of workers that could not be told. Safe to repeat."""
        failed = await self.release_workers()
        self._admission.release()
        return failed

    async def release_workers(self) -> list[BatonError]:
        """Let workers go on, without requests of this router yet."""
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None
        return await self._resume(self._workers())

    def _workers(self) -> list[Endpoint]:
        return [*self._endpoints.of_role(Role.PREFILL), *self._endpoints.of_role(Role.DECODE)]

    async def _renew(self) -> None:
        request = lifecycle_pb2.KeepPausedRequest()
        while True:
            await asyncio.sleep(RENEW_S)
            # One that does not answer goes on by itself, or is lost.
            await self._orders.each(
                self._workers(), lambda stub: stub.KeepPaused(request, timeout=RENEW_S)
            )

    async def _resume(self, workers: Sequence[Endpoint]) -> list[BatonError]:
        request = lifecycle_pb2.ResumeRequest()
        answers = await self._orders.each(
            workers, lambda stub: stub.Resume(request, timeout=QUICK_S)
        )
        return [answer for answer in answers.values() if isinstance(answer, BatonError)]
