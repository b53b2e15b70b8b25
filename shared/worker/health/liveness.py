"""A worker's own judgement whether it can work.

Two things are checked: that the engine's thread makes progress while it has work, and, while no
request is served, that a request of the worker's own is answered. A worker that fails is no longer
`ready`: its health check and its heartbeats report that, it refuses requests, and running ones are
ended with UNAVAILABLE, to be served elsewhere. It is ready again as soon as its own request is
answered.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import structlog
from prometheus_client import Counter, Gauge

from shared.errors import BatonError, WorkerLostError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from prometheus_client import CollectorRegistry

    from shared.engine.thread.engine_thread import EngineThread
    from shared.engine.thread.progress import EngineProgress
    from shared.worker.health.gate import RequestGate

log = structlog.get_logger(__name__)

#: Seconds between two checks.
POLL_S = 0.5
#: The first step may compile kernels and allocate.
FIRST_STEP_S = 120.0


class Watchdog:
    """Judges an engine by the time of its running step."""

    def __init__(
        self, progress: EngineProgress, *, stall_s: float, first_step_s: float = FIRST_STEP_S
    ) -> None:
        self._progress = progress
        self._stall_s = stall_s
        self._first_step_s = max(stall_s, first_step_s)

    @property
    def bites(self) -> bool:
        """Whether the engine has been at one step for too long. May be called in any thread."""
        bound_s = self._stall_s if self._progress.num_steps else self._first_step_s
        return self._progress.busy_for_s > bound_s


class LivenessMetrics:
    """Whether a worker counts as healthy, and the results of its checks."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._healthy = Gauge(
            "baton_worker_healthy",
            "1, or 0 while the worker cannot serve.",
            registry=registry,
        )
        self._healthy.set(1)
        self._failures = Counter(
            "baton_worker_failures",
            "How often the worker has found that it cannot serve.",
            ["reason"],
            registry=registry,
        )

    def left(self, reason: str) -> None:
        """Record that the worker cannot serve."""
        self._healthy.set(0)
        self._failures.labels(reason).inc()

    def returned(self) -> None:
        """Record that the worker can serve again."""
        self._healthy.set(1)


class Liveness:
    """Keeps `gate.unhealthy` up to date. Call `run` until cancelled, on the service's loop."""

    def __init__(
        self,
        *,
        engine: EngineThread,
        gate: RequestGate,
        watchdog: Watchdog,
        check: Callable[[], Awaitable[None]],
        check_interval_s: float,
        metrics: CollectorRegistry,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Watch an engine. `check` sends a request to it and raises if there is no answer."""
        self._engine = engine
        self._gate = gate
        self._watchdog = watchdog
        self._check = check
        self._check_interval_s = check_interval_s
        self._metrics = LivenessMetrics(metrics)
        self._clock = clock
        self._checked_s = clock()
        self._num_steps = 0
        self._num_failed = 0

    async def run(self) -> None:
        """Call `look` every `POLL_S` seconds until cancelled."""
        while True:
            await asyncio.sleep(POLL_S)
            await self.look()

    async def look(self) -> None:
        """Compare the reported state with the real one, once."""
        if self._watchdog.bites:
            self._leave("stuck", "the engine makes no progress")
        elif self._engine.is_paused:
            # It answers nothing, as it was told.
            self._checked_s = self._clock()
        elif self._gate.unhealthy or self._is_due():
            await self._try_out()

    def _is_due(self) -> bool:
        """Return whether to send an own request: nothing was computed lately, or the last one
        failed.
        """
        stats, progress = self._engine.stats(), self._engine.progress
        if self._gate.num_inside or stats.num_running or stats.num_waiting:
            self._checked_s = self._clock()
            return False
        num_failed = stats.counters.get("requests_failed", 0)
        if num_failed != self._num_failed:
            self._num_failed = num_failed
            return True
        if progress.num_steps != self._num_steps:
            # Requests of clients were answered.
            self._num_steps = progress.num_steps
            self._checked_s = self._clock()
        return self._clock() - self._checked_s >= self._check_interval_s

    async def _try_out(self) -> None:
        try:
            await self._check()
        except (BatonError, TimeoutError) as error:
            if self._engine.is_paused:
                return  # since the check began
            self._leave("check", f"the worker's own check failed: {str(error) or 'no answer'}")
        else:
            self._return()
        self._checked_s = self._clock()
        self._num_steps = self._engine.progress.num_steps
        self._num_failed = self._engine.stats().counters.get("requests_failed", 0)

    def _leave(self, reason: str, text: str) -> None:
        is_new = not self._gate.unhealthy
        self._gate.set_unhealthy(text)
        num_expelled = self._gate.expel(lambda: WorkerLostError(text))
        if is_new:
            self._metrics.left(reason)
            log.error("worker_unhealthy", reason=text, num_expelled=num_expelled)

    def _return(self) -> None:
        if self._gate.unhealthy:
            self._gate.set_unhealthy("")
            self._metrics.returned()
            log.info("worker_healthy")
