"""Counts the requests in a worker; closed to new ones while the worker is full, drains or is stuck.

It can also hold new requests back, and end running ones.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from shared.errors import DrainingError, OverloadedError, RefusalReason, WorkerLostError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from shared.errors import BatonError


class RequestGate:
    """Every request passes through `enter`; `drain` waits until the last one has ended."""

    def __init__(self, worker_name: str, *, max_inside: int | None = None) -> None:
        """Open the gate.

        `max_inside`: maximum of running and waiting requests; None: any number.
        """
        self._worker_name = worker_name
        self._max_inside = max_inside
        self._inside: dict[asyncio.Timeout, None] = {}
        self._num_inside = 0
        self._reason: Callable[[], BatonError] | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self._is_free = asyncio.Event()
        self._is_free.set()
        #: Set when no request will ever enter again: long calls without one end.
        self.over = asyncio.Event()
        #: Called when a request has ended.
        self.on_leave: Callable[[], None] = lambda: None
        self._listeners: list[Callable[[], None]] = []
        self.draining = False
        #: Reason why the worker cannot serve at present; empty if it can.
        self.unhealthy = ""

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back whenever the gate closes or opens, or `report` is called."""
        self._listeners.append(callback)

    @property
    def num_inside(self) -> int:
        """Number of requests that have not ended."""
        return self._num_inside

    @property
    def is_open(self) -> bool:
        """Whether new requests are accepted."""
        return not self.draining and not self.unhealthy

    @asynccontextmanager
    async def enter(self) -> AsyncIterator[None]:
        """Hold the gate for one request, which must stay in the task that enters.

        Raises:
            DrainingError: the worker takes no new work, or this request did not finish in time.
            WorkerLostError: the worker makes no progress.
            OverloadedError: the gate is full; another worker may have a place.
        """
        await self._is_free.wait()
        if self.draining:
            raise DrainingError(f"{self._worker_name} is draining and takes no new requests")
        if self.unhealthy:
            raise WorkerLostError(f"{self._worker_name}: {self.unhealthy}")
        if self._max_inside is not None and self._num_inside >= self._max_inside:
            raise OverloadedError(
                f"{self._worker_name} has {self._num_inside} requests and takes no more",
                reason=RefusalReason.WORKER_FULL,
            )
        self._num_inside += 1
        self._empty.clear()
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._inside[limit] = None
                try:
                    yield
                finally:
                    del self._inside[limit]
        except TimeoutError as error:
            if not limit.expired() or self._reason is None:
                raise
            raise self._reason() from error
        finally:
            self._num_inside -= 1
            self.on_leave()
            if not self._num_inside:
                self._empty.set()

    @property
    def is_held(self) -> bool:
        """Whether new requests wait."""
        return not self._is_free.is_set()

    def hold(self) -> None:
        """Let new requests wait until `release` or the end of the gate."""
        self._is_free.clear()

    def release(self) -> None:
        """Let the requests in that wait."""
        self._is_free.set()

    def expel(self, reason: Callable[[], BatonError]) -> int:
        """End every running request with `reason` soon; return their number."""
        self._reason = reason
        now_s = asyncio.get_running_loop().time()
        asked = [limit for limit in self._inside if limit.when() is None]
        for limit in asked:
            limit.reschedule(now_s)
        return len(asked)

    def close(self) -> None:
        """Refuse all new requests from now on, and those that wait."""
        self.draining = True
        self._is_free.set()
        self._tell()

    def set_unhealthy(self, reason: str) -> None:
        """Refuse new requests for this reason, or, if it is empty, admit them again."""
        self.unhealthy = reason
        self._tell()

    def report(self) -> None:
        """Call the listeners: the worker has something else to report."""
        self._tell()

    async def drain(self, grace_s: float) -> int:
        """Close the gate, wait up to `grace_s`, and end the remaining requests; return their
        number.
        """
        self.close()
        if await self.wait_empty(grace_s):
            return 0
        message = f"{self._worker_name} was stopped before the request had finished"
        return self.expel(lambda: DrainingError(message))

    async def wait_empty(self, timeout_s: float) -> bool:
        """Return whether the last request ended in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return self._empty.is_set()
        return True

    def _tell(self) -> None:
        for callback in self._listeners:
            callback()
