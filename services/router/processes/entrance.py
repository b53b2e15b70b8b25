"""A process's side of what the hub counts. See `Entrance` and `Quotas`."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from services.router.admission.entrance import Admitted, Permit
from services.router.admission.tenant import ANONYMOUS
from services.router.processes.link import error_from_wire
from services.router.processes.wire import Asked, Told, tenant_to_wire
from services.router.routing.room import Left

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from services.router.admission.tenant import Tenant
    from services.router.processes.link import Link

#: The room is measured at most this often, and what was booked since is subtracted.
ROOM_S = 0.005
#: A change of the room's tokens by a smaller part is not told.
SAME_TOKENS = 32
#: Tenants whose last headers are kept.
MAX_TENANTS = 1024


class SharedEntrance:
    """See Entrance. The hub decides; what is counted here are this process's own requests."""

    def __init__(
        self,
        link: Link,
        model: str,
        *,
        left: Callable[[], Left],
        is_asleep: Callable[[], bool],
        on_booked: Callable[[], None] = lambda: None,
    ) -> None:
        """`left`: returns what workers have room for now. `is_asleep`: whether they sleep.

        `on_booked` is called when a request that was let in is in this process's book.
        """
        self._link = link
        self._model = model
        self._left = left
        self._is_asleep = is_asleep
        self._on_booked = on_booked
        self._numbers = itertools.count()
        self._waiting: Counter[str] = Counter()
        self._booked: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._said: tuple[Left, bool] | None = None
        self._measured_s = 0.0
        self.num_inside = 0
        self.num_queued_tokens = 0
        self.is_held = False

    @property
    def num_queued(self) -> int:
        """See Entrance."""
        return self._waiting.total()

    def queue_lengths(self) -> Mapping[str, int]:
        """See Entrance."""
        return {name: number for name, number in self._waiting.items() if number}

    def hold(self) -> None:
        """See Entrance: of all processes."""
        self.is_held = True
        self._link.tell(Told.HOLD, self._model)

    def release(self) -> None:
        """See Entrance: of all processes."""
        self.is_held = False
        self._link.tell(Told.RELEASE, self._model)

    def look(self) -> None:
        """See Entrance."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(ROOM_S, self._look_now)

    async def expected_wait_s(
        self, num_tokens: int, *, priority: int = 0, tenant: Tenant = ANONYMOUS
    ) -> float:
        """See Entrance."""
        body = [self._model, tenant_to_wire(tenant), num_tokens, priority]
        return float(await self._link.ask(Asked.WAIT, body))

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
        number = next(self._numbers)
        started_s = time.monotonic()
        self._waiting[tenant.name] += 1
        self.num_queued_tokens += num_tokens
        place = Admitted(0.0)
        try:
            try:
                await self._link.ask(
                    Asked.ENTER,
                    [
                        self._model,
                        number,
                        tenant_to_wire(tenant),
                        num_tokens,
                        priority,
                        max_wait_s,
                    ],
                )
            finally:
                self.num_queued_tokens -= num_tokens
                self._waiting[tenant.name] -= 1
                if not self._waiting[tenant.name]:
                    del self._waiting[tenant.name]
            place.queue_ms = (time.monotonic() - started_s) * 1000
            self.num_inside += 1
            if not self._booked:
                # Runs after this task has booked the request at a worker.
                asyncio.get_running_loop().call_soon(self._say_booked)
            self._booked.append(number)
            try:
                yield place
            finally:
                self.num_inside -= 1
        finally:
            # Also for one that is given up: the hub may have let it in meanwhile.
            self._link.tell(
                Told.LEAVE,
                [self._model, number, place.num_prompt_tokens, place.num_output_tokens],
            )

    def say_room(self) -> None:
        """Tell the hub of the workers' room if it has changed."""
        self._say(self._left(), [])
        self._measured_s = time.monotonic()

    def _look_now(self) -> None:
        self._timer = None
        self.say_room()

    def _say_booked(self) -> None:
        booked, self._booked = self._booked, []
        if self._said is not None and time.monotonic() < self._measured_s + ROOM_S:
            before, _ = self._said
            left = Left(before.num_prompts - len(booked), before.num_tokens)
        else:
            left = self._left()
            self._measured_s = time.monotonic()
        self._say(left, booked)
        self._on_booked()

    def _say(self, left: Left, booked: list[int]) -> None:
        said = left, self._is_asleep()
        if not booked and self._said is not None and _is_same(said, self._said):
            return
        self._said = said
        body = [self._model, booked, left.num_prompts, left.num_tokens, said[1]]
        self._link.tell(Told.ROOM, body)


def _is_same(said: tuple[Left, bool], before: tuple[Left, bool]) -> bool:
    (left, is_asleep), (told, was_asleep) = said, before
    if is_asleep is not was_asleep or left.num_prompts != told.num_prompts:
        return False
    if left.num_tokens == told.num_tokens:
        return True
    # Each token of an answer takes one.
    change = abs(left.num_tokens - told.num_tokens)
    return math.isfinite(change) and change * SAME_TOKENS <= abs(told.num_tokens)


class SharedQuotas:
    """See Quotas. Tenants without limits are counted in this process alone."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._numbers = itertools.count()
        self._running: Counter[str] = Counter()
        #: As of each tenant's last request.
        self._headers: dict[str, list[tuple[str, str]]] = {}

    def running(self) -> Mapping[str, int]:
        """See Quotas."""
        return dict(self._running)

    @asynccontextmanager
    async def enter(self, tenant: Tenant, num_tokens: int) -> AsyncIterator[Permit]:
        """See Quotas."""
        permit = Permit()
        is_limited = _is_limited(tenant)
        number = next(self._numbers)
        try:
            if is_limited:
                body = [number, tenant_to_wire(tenant), num_tokens]
                error, headers = await self._link.ask(Asked.PERMIT, body)
                self._keep(tenant.name, headers)
                if error is not None:
                    raise error_from_wire(error)
            self._running[tenant.name] += 1
            try:
                yield permit
            finally:
                self._running[tenant.name] -= 1
                if not self._running[tenant.name]:
                    del self._running[tenant.name]
        finally:
            if is_limited:
                self._link.tell(Told.PAID, [number, permit.num_tokens])

    def headers(self, tenant: Tenant) -> list[tuple[str, str]]:
        """See Quotas: as of the tenant's last request to this process."""
        return self._headers.get(tenant.name, []) if _is_limited(tenant) else []

    def _keep(self, name: str, headers: list[list[str]]) -> None:
        self._headers.pop(name, None)
        if len(self._headers) >= MAX_TENANTS:
            del self._headers[next(iter(self._headers))]
        self._headers[name] = [(key, value) for key, value in headers]


def _is_limited(tenant: Tenant) -> bool:
    return tenant.max_concurrent_requests is not None or tenant.max_tokens_per_minute is not None
