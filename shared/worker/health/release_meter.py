"""Time until the engine frees the blocks of an ended request (I2), measured by the worker."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from prometheus_client import Histogram

from shared.errors import BatonError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from shared.engine.engine import Engine
    from shared.engine.thread.engine_thread import EngineThread

_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class ReleaseMeter:
    """Measures the time from a request's end until its blocks are free.

    `ended` begins a measurement. It is over when the engine has run two empty calls: the calls that
    freed the blocks were queued before them.
    """

    def __init__(self, engine: EngineThread, registry: CollectorRegistry) -> None:
        self._engine = engine
        self._seconds = Histogram(
            "baton_release_seconds",
            "From a request's end until its blocks were free.",
            buckets=_BUCKETS,
            registry=registry,
        )
        self._task: asyncio.Task[None] | None = None
        #: The longest time measured.
        self.max_s = 0.0

    def ended(self) -> None:
        """Measure the end of a request. Ends during a measurement are not measured."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._measure())

    async def _measure(self) -> None:
        began_s = time.monotonic()
        try:
            # Blocks written by a running step are free after that step; the second call is after
            # it.
            for _ in range(2):
                await self._engine.call(_nothing)
        except BatonError:
            return
        duration_s = time.monotonic() - began_s
        self.max_s = max(self.max_s, duration_s)
        self._seconds.observe(duration_s)


def _nothing(engine: Engine) -> None:
    """Do nothing: only the command's order matters."""
