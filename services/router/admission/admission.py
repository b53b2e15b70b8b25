"""Admit as many requests as the cluster should work on; queue or refuse the others.

Waiting here is better than waiting in a worker's queue: the order can still change (fair among
tenants, urgent requests first), cancelling costs nothing, and no block is held. So a request waits
until the workers have room, not only until few enough requests are admitted.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from services.router.admission.entrance import Admitted
from services.router.admission.fair_queue import FairQueue, QueueFullError
from services.router.admission.pace import Pace
from services.router.admission.tenant import ANONYMOUS
from shared.errors import OverloadedError, RefusalReason, UnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from services.router.admission.entrance import AdmissionLimits
    from services.router.admission.fair_queue import Entry
    from services.router.admission.tenant import Tenant

#: Weight of the newest request in averages.
_NEWEST_WEIGHT = 0.1
#: Interval of checks for room: workers' queues also shrink, and workers also join, while no request
#: of this router ends.
_LOOK_AGAIN_S = 0.05
_LONGEST_RETRY_S = 60.0


def _always(_num_tokens: int) -> bool:
    return True


def _never() -> bool:
    return False


class Admission:
    """See Entrance. The queue is fair among tenants, and by priority within a tenant."""

    def __init__(
        self,
        limits: AdmissionLimits,
        *,
        has_room: Callable[[int], bool] = _always,
        is_asleep: Callable[[], bool] = _never,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make the queue.

        has_room: returns whether workers should get a prompt of the given number of tokens now.
        is_asleep: returns whether workers sleep: requests wait for them as for a place.
        """
        self._limits = limits
        self._has_room = has_room
        self._is_asleep = is_asleep
        self._clock = clock
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue(
            max_requests=limits.max_queued_requests, max_tokens=limits.max_queued_tokens
        )
        self._pace = Pace()
        self._request_s = 1.0
        self._mean_output = 0.0
        self._is_entering = False
        self._timer: asyncio.TimerHandle | None = None
        self._is_held = False
        self.num_inside = 0

    @property
    def is_held(self) -> bool:
        """Whether no request is admitted."""
        return self._is_held

    def hold(self) -> None:
        """Admit no request until `release`: those that arrive wait, as long as others do."""
        self._is_held = True

    def release(self) -> None:
        """Admit requests again. Safe to repeat."""
        self._is_held = False
        self.look()

    @property
    def num_queued(self) -> int:
        """Number of requests that wait."""
        return self._queue.num_requests

    @property
    def num_queued_tokens(self) -> int:
        """Number of prompt tokens of the requests that wait."""
        return self._queue.num_tokens

    def queue_lengths(self) -> dict[str, int]:
        """Number of requests that wait, by the name of their tenant."""
        return self._queue.lengths()

    async def expected_wait_s(
        self, num_tokens: int, *, priority: int = 0, tenant: Tenant = ANONYMOUS
    ) -> float:
        """See Entrance. Nothing is awaited here."""
        if not self._queue and self._may_enter(num_tokens):
            return 0.0
        return self._wait_s(tenant, priority)

    @asynccontextmanager
    async def enter(
        self,
        num_tokens: int,
        *,
        priority: int = 0,
        tenant: Tenant = ANONYMOUS,
        max_wait_s: float | None = None,
    ) -> AsyncIterator[Admitted]:
        """See Entrance."""
        started_s = self._clock()
        cost = max(1.0, num_tokens + self._mean_output)
        waited = bool(self._queue) or self._is_entering or not self._may_enter(num_tokens)
        if not waited:
            self._queue.charge(tenant, cost)
            self.num_inside += 1
        else:
            await self._wait(num_tokens, cost, priority, tenant, max_wait_s)
        entered_s = self._clock()
        place = Admitted((entered_s - started_s) * 1000)
        try:
            yield place
        finally:
            if place.num_prompt_tokens:
                self._learn(self._clock() - entered_s, place.num_output_tokens)
            elif waited:
                # The request waited, and no worker computed for it: its turn took no time.
                self._pace.take_back(cost)
            self._give_back(tenant, cost, place.num_prompt_tokens + place.num_output_tokens)

    def look(self) -> None:
        """Admit the next request if a place is free and workers have room."""
        head = self._queue.head()
        if head is not None and not self._is_entering and self._may_enter(head.num_tokens):
            entry = self._queue.pop()
            self.num_inside += 1
            self._pace.note(self._clock(), entry.cost)
            if entry.item.done():
                # The request was cancelled, and its task has not run since.
                self._give_back(entry.tenant, entry.cost, 0.0)
            else:
                entry.item.set_result(None)
            # The next request waits until the task of this one has run and has booked its work at a
            # worker. Otherwise both would see the same room.
            self._is_entering = True
            asyncio.get_running_loop().call_soon(self._look_at_next)
        if not self._queue:
            self._pace.rest()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_LOOK_AGAIN_S, self._look_again)

    def _learn(self, request_s: float, num_output_tokens: int) -> None:
        self._request_s += _NEWEST_WEIGHT * (request_s - self._request_s)
        self._mean_output += _NEWEST_WEIGHT * (num_output_tokens - self._mean_output)

    def _look_at_next(self) -> None:
        self._is_entering = False
        self.look()

    def _look_again(self) -> None:
        self._timer = None
        self.look()

    def _may_enter(self, num_tokens: int) -> bool:
        if self._is_held or self.num_inside >= self._limits.max_concurrent_requests:
            return False
        if self._is_asleep():
            return False
        # While no request is admitted, the estimate of the workers' room delays no request.
        return not self.num_inside or self._has_room(num_tokens)

    async def _wait(
        self,
        num_tokens: int,
        cost: float,
        priority: int,
        tenant: Tenant,
        max_wait_s: float | None,
    ) -> None:
        longest_s = self._limits.max_queue_s
        if max_wait_s is not None:
            longest_s = min(longest_s, max_wait_s)
        entry = self._push(num_tokens, cost, priority, tenant)
        is_in = False
        try:
            async with asyncio.timeout(longest_s):
                await entry.item
            is_in = True
        except TimeoutError as error:
            if self._is_asleep():
                message = f"waited {longest_s:.3g} s for workers that are asleep: wake them up"
                raise UnavailableError(message) from error
            if self._is_held:
                message = f"waited {longest_s:.3g} s, and requests are paused: resume them"
                raise UnavailableError(message) from error
            message = f"waited {longest_s:.3g} s for a place; the cluster is overloaded"
            raise self._overloaded(
                message, tenant, priority, RefusalReason.QUEUE_TIMEOUT
            ) from error
        finally:
            # The request may have been admitted in the moment in which its wait ended.
            if not is_in and not self._queue.remove(entry) and _was_let_in(entry):
                self._give_back(tenant, cost, 0.0)

    def _push(
        self, num_tokens: int, cost: float, priority: int, tenant: Tenant
    ) -> Entry[asyncio.Future[None]]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        num_waiting, num_waiting_tokens = self.num_queued, self.num_queued_tokens
        try:
            entry, victims = self._queue.push(
                tenant, future, num_tokens=num_tokens, cost=cost, priority=priority
            )
        except QueueFullError as error:
            message = f"{num_waiting} requests with {num_waiting_tokens} tokens are waiting already"
            raise self._overloaded(message, tenant, priority, RefusalReason.QUEUE_FULL) from error
        if not num_waiting:
            self._pace.begin(self._clock())
        for victim in victims:
            if not victim.item.done():
                message = "dropped from the full queue for a tenant that uses less of it"
                victim.item.set_exception(
                    self._overloaded(
                        message, victim.tenant, victim.priority, RefusalReason.DISPLACED
                    )
                )
        self.look()
        return entry

    def _give_back(self, tenant: Tenant, charged: float, cost: float) -> None:
        self.num_inside -= 1
        self._queue.settle(tenant, charged=charged, cost=cost)
        self.look()

    def _overloaded(
        self, message: str, tenant: Tenant, priority: int, reason: RefusalReason
    ) -> OverloadedError:
        """Return the error, with the expected time until the present queue is served."""
        wait_s = self._wait_s(tenant, priority)
        retry_after_s = min(_LONGEST_RETRY_S, max(1.0, wait_s))
        return OverloadedError(message, retry_after_s=retry_after_s, reason=reason)

    def _wait_s(self, tenant: Tenant, priority: int) -> float:
        num_requests, cost = self._queue.ahead(tenant, priority=priority)
        s_per_cost = self._pace.s_per_cost
        if s_per_cost is not None:
            return (cost + self._pace.mean_cost) * s_per_cost
        # No pace is known before a request has waited: use the time for which a place is held.
        return (num_requests + 1) / self._limits.max_concurrent_requests * self._request_s


def _was_let_in(entry: Entry[asyncio.Future[None]]) -> bool:
    future = entry.item
    return future.done() and not future.cancelled() and future.exception() is None
