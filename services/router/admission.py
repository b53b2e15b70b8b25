"""Lets in as many requests as the cluster should work on; the others wait, or are refused."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.errors import OverloadedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

#: How much the newest request counts in the average time that one takes.
_NEWEST_WEIGHT = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """Bounds on what is inside and on what waits."""

    max_concurrent_requests: int = 256
    max_queued_requests: int = 1024
    max_queued_tokens: int = 1_000_000
    max_queue_s: float = 30.0


@dataclass(order=True, slots=True)
class _Waiting:
    priority: int
    #: First come, first served among equals.
    order: int
    num_tokens: int = field(compare=False)
    admitted: asyncio.Future[None] = field(compare=False)


class Admission:
    """The queue in front of routing. Lower priorities go first."""

    def __init__(
        self, limits: AdmissionLimits, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._waiting: list[_Waiting] = []
        self._order = itertools.count()
        self._request_s = 1.0
        self.num_inside = 0
        self.num_queued_tokens = 0

    @property
    def num_queued(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    @property
    def expected_wait_s(self) -> float:
        """How long a request that came now would wait for its place."""
        if self.num_inside < self._limits.max_concurrent_requests and not self._waiting:
            return 0.0
        return self._queue_s()

    @asynccontextmanager
    async def enter(self, num_tokens: int, *, priority: int = 0) -> AsyncIterator[float]:
        """Hold a place inside; gives the milliseconds that were spent waiting for it.

        Raises:
            OverloadedError: the queue is full, or the wait took too long.
        """
        started_s = self._clock()
        if self.num_inside < self._limits.max_concurrent_requests and not self._waiting:
            self.num_inside += 1
        else:
            await self._wait(num_tokens, priority)
        entered_s = self._clock()
        try:
            yield (entered_s - started_s) * 1000
        finally:
            self._leave(self._clock() - entered_s)

    async def _wait(self, num_tokens: int, priority: int) -> None:
        self._refuse_if_full(num_tokens)
        future = asyncio.get_running_loop().create_future()
        entry = _Waiting(priority, next(self._order), num_tokens, future)
        heapq.heappush(self._waiting, entry)
        self.num_queued_tokens += num_tokens
        is_in = False
        try:
            async with asyncio.timeout(self._limits.max_queue_s):
                await entry.admitted
            is_in = True
        except TimeoutError as error:
            message = f"waited {self._limits.max_queue_s} s for a place; the cluster is overloaded"
            raise OverloadedError(message, retry_after_s=self._retry_after_s()) from error
        finally:
            if not is_in:
                self._withdraw(entry)

    def _withdraw(self, entry: _Waiting) -> None:
        """It timed out or was cancelled, possibly in the moment in which it got its place."""
        if entry in self._waiting:
            self._waiting.remove(entry)
            heapq.heapify(self._waiting)
            self.num_queued_tokens -= entry.num_tokens
        else:
            self._free_place()

    def _refuse_if_full(self, num_tokens: int) -> None:
        limits = self._limits
        if self.num_queued >= limits.max_queued_requests:
            message = f"{self.num_queued} requests are waiting already"
        elif self._waiting and self.num_queued_tokens + num_tokens > limits.max_queued_tokens:
            message = f"requests with {self.num_queued_tokens} tokens are waiting already"
        else:
            return
        raise OverloadedError(message, retry_after_s=self._retry_after_s())

    def _leave(self, inside_s: float) -> None:
        self._request_s += _NEWEST_WEIGHT * (inside_s - self._request_s)
        self._free_place()

    def _free_place(self) -> None:
        self.num_inside -= 1
        while self._waiting and self.num_inside < self._limits.max_concurrent_requests:
            entry = heapq.heappop(self._waiting)
            self.num_queued_tokens -= entry.num_tokens
            self.num_inside += 1
            if entry.admitted.cancelled():
                # Its task has not run since: it will find that it had a place, and free it.
                continue
            entry.admitted.set_result(None)

    def _retry_after_s(self) -> float:
        """When the queue of now should be through."""
        return min(60.0, max(1.0, self._queue_s()))

    def _queue_s(self) -> float:
        rounds = (self.num_queued + 1) / self._limits.max_concurrent_requests
        return rounds * self._request_s
