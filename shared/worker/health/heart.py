"""Heartbeats in a thread of their own: neither the engine nor the service's event loop, however
busy, can keep a working worker from renewing its lease.

Heartbeats report the worker's state nevertheless: a beating heart in a worker that does nothing
else would only attract requests. So every beat carries whether the engine and the event loop make
progress.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

import structlog

from shared.errors import BatonError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.directory.base import WorkerLoad
    from shared.directory.lease import Lease

log = structlog.get_logger(__name__)


class LoopWatch:
    """Measures the delay of an event loop. Called in another thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._loop = loop
        self._clock = clock
        #: When the loop was asked to run a callback; None after the callback.
        self._asked_s: float | None = None

    def late_s(self) -> float:
        """Return the delay [s]; 0 if the loop has run the last callback. Requests the next one."""
        # A copy: the loop may run the callback meanwhile.
        asked_s = self._asked_s
        if asked_s is None:
            asked_s = self._asked_s = self._clock()
            try:
                self._loop.call_soon_threadsafe(self._came_by)
            except RuntimeError:
                # The loop is closed: the process ends.
                return 0.0
        return self._clock() - asked_s

    def _came_by(self) -> None:
        self._asked_s = None


class Heart:
    """Renews one lease every `period_s`, from `start` until `stop`."""

    def __init__(
        self,
        open_lease: Callable[[], Lease],
        *,
        load: Callable[[], WorkerLoad],
        period_s: float,
        on_beat: Callable[[Exception | None], None],
    ) -> None:
        """Make a heart. `load` is called in the heart's thread.

        `on_beat` is called on the event loop that called `start`, with the error, if any.
        """
        self._open_lease = open_lease
        self._load = load
        self._period_s = period_s
        self._on_beat = on_beat
        self._wanted = threading.Event()
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="heart", daemon=True)

    def start(self) -> None:
        """Start. The first beat comes after one period."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def beat_soon(self) -> None:
        """Beat without waiting for the period, because there is something to report."""
        self._wanted.set()

    async def stop(self) -> None:
        """Stop. A running beat may take the lease's own timeout."""
        self._stopping = True
        self._wanted.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        lease = self._open_lease()
        try:
            while not self._stopping:
                self._wanted.wait(self._period_s)
                self._wanted.clear()
                if not self._stopping:
                    self._tell(self._beat(lease))
        finally:
            lease.close()

    def _beat(self, lease: Lease) -> Exception | None:
        try:
            lease.renew(self._load())
        except (BatonError, OSError) as error:
            return error
        except Exception as error:  # the thread must live as long as the worker
            log.exception("heartbeat_failed")
            return UnavailableError(f"a heartbeat failed: {error!r}")
        return None

    def _tell(self, error: Exception | None) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._on_beat, error)
