"""The one thread that uses NIXL. It polls while there are transfers, and sleeps otherwise."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from shared.connector.nixl.lane import LaneError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.connector.nixl.lane import Lane

log = structlog.get_logger(__name__)
_T = TypeVar("_T")
#: A poll that took longer has moved bytes, so the next one probably will too.
_IDLE_POLL_S = 20e-6
_MIN_PAUSE_S = 20e-6
#: Pause while a peer computes its next write. A frame announces that write, and ends the pause.
_MAX_PAUSE_S = 5e-3


class Pump:
    """The thread. Lanes are made, used and closed in it, by calls from this object's event loop."""

    def __init__(self, *, max_stall_s: float = math.inf) -> None:
        """Start the thread. After a pause of `max_stall_s` lanes end instead of writing.

        The pause is the time since the last call of `alive`.
        """
        self._max_stall_s = max_stall_s
        self._alive_at = time.monotonic()
        self._stood_still = False
        self._loop = asyncio.get_running_loop()
        # Not `queue.SimpleQueue`: a short timeout of its `get` can become an endless one if the
        # awaited item was taken by then (seen in CPython 3.11).
        self._orders: deque[Callable[[], None]] = deque()
        self._ordered = threading.Event()
        self._closing = False
        self._lanes: set[Lane] = set()
        self._thread = threading.Thread(target=self._run, name="baton-nixl", daemon=True)
        self._thread.start()

    def run(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        """Run `work` on the thread; return its result. Cancelling does not stop it."""
        future: asyncio.Future[_T] = self._loop.create_future()
        self.post(partial(self._work, work, future))
        return future

    def post(self, work: Callable[[], None]) -> None:
        """Queue `work`, which raises nothing, on the thread after earlier calls."""
        self._orders.append(work)
        self._ordered.set()

    def tell(self, callback: Callable[[], object]) -> None:
        """Call back on the event loop. Called on the thread."""
        self._loop.call_soon_threadsafe(callback)

    def adopt(self, lane: Lane) -> Lane:
        """Poll this lane, too, until it is closed. Called on the thread."""
        self._lanes.add(lane)
        return lane

    def alive(self) -> bool:
        """Report from the event loop that it runs; return False after too long a pause."""
        now = time.monotonic()
        stood_still = now - self._alive_at > self._max_stall_s
        self._stood_still |= stood_still
        self._alive_at = now
        return not stood_still

    def close(self) -> None:
        """Run queued work, close all lanes and end the thread."""
        self._closing = True
        self._ordered.set()
        self._thread.join()

    def _run(self) -> None:
        pause_s = _MIN_PAUSE_S
        while not self._closing:
            busy = [lane for lane in self._lanes if lane.is_busy]
            ordered = self._ordered.wait(pause_s if busy else None)
            self._end_if_stalled()
            if ordered:
                self._obey()
                pause_s = _MIN_PAUSE_S
                continue
            started_at = time.perf_counter()
            for lane in busy:
                if not lane.is_closed:
                    _poll(lane)
            moved = time.perf_counter() - started_at > _IDLE_POLL_S
            pause_s = _MIN_PAUSE_S if moved else min(2 * pause_s, _MAX_PAUSE_S)
        self._obey()
        for lane in self._lanes:
            lane.close()
        self._lanes.clear()

    def _end_if_stalled(self) -> None:
        if self._stood_still or time.monotonic() - self._alive_at > self._max_stall_s:
            self._stood_still = False
            for lane in self._lanes:
                if lane.is_aimed:
                    lane.close()

    def _obey(self) -> None:
        self._ordered.clear()
        while self._orders:
            self._orders.popleft()()
        self._lanes = {lane for lane in self._lanes if not lane.is_closed}

    def _work(self, work: Callable[[], _T], future: asyncio.Future[_T]) -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 it belongs to the caller
            self.tell(partial(settle, future, None, error))
        else:
            self.tell(partial(settle, future, result, None))


def _poll(lane: Lane) -> None:
    try:
        lane.poll()
    except LaneError as error:
        # Its writes fail now; transfers to it time out.
        log.warning("nixl_lane_broken", reason=str(error))
        lane.close()


def settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    """Set the result of `future`, unless it is done or cancelled."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
