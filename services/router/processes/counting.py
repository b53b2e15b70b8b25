"""What the hub counts for all processes: the places of each model, and the limits of tenants."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from services.router.admission.admission import Admission
from services.router.admission.tenant_limits import TenantLimits
from services.router.processes.link import error_to_wire
from services.router.processes.stays import Stays
from services.router.processes.wire import tenant_from_wire
from services.router.routing.room import UNBOUNDED, Left
from shared.errors import BatonError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.admission.entrance import AdmissionLimits
    from services.router.processes.stays import Key, Stay

#: After this time a request counts as booked, though its process has not said so: it hangs.
BOOKED_S = 1.0


class Places:
    """The places of one model, and the queue for them."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self.admission = Admission(
            limits, has_room=self._has_room, is_asleep=lambda: self._is_asleep
        )
        self._stays: Stays[tuple[int, int]] = Stays()
        self._left: Left = UNBOUNDED
        self._is_asleep = False
        #: Tokens of requests that were let in and are not yet in what processes say of the room,
        #: and when they were.
        self._unbooked: dict[Key, tuple[int, float]] = {}

    def enter(
        self,
        key: Key,
        tenant: Sequence[Any],
        num_tokens: int,
        priority: int,
        max_wait_s: float | None,
    ) -> asyncio.Future[None]:
        """Return what is done when the request is let in. It counts until `leave`.

        Raises, in the future: what `Entrance.enter` raises.
        """

        async def hold(stay: Stay[tuple[int, int]]) -> None:
            entry = self.admission.enter(
                num_tokens,
                priority=priority,
                tenant=tenant_from_wire(tenant),
                max_wait_s=max_wait_s,
            )
            async with entry as place:
                self._unbooked[key] = num_tokens, time.monotonic()
                try:
                    stay.begun.set_result(None)
                    place.num_prompt_tokens, place.num_output_tokens = await stay.ended
                finally:
                    self._unbooked.pop(key, None)

        return self._stays.begin(key, hold)

    async def expected_wait_s(self, tenant: Sequence[Any], num_tokens: int, priority: int) -> float:
        """See Entrance."""
        return await self.admission.expected_wait_s(
            num_tokens, priority=priority, tenant=tenant_from_wire(tenant)
        )

    def leave(self, key: Key, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """End a request that was let in, or give up one that waits. Ignores unknown ones."""
        self._stays.end(key, (num_prompt_tokens, num_output_tokens))

    def drop(self, process: int) -> None:
        """Give back all that a process holds: it has ended."""
        self._stays.drop(process)

    def note_room(self, left: Left, booked: Sequence[Key], *, is_asleep: bool) -> None:
        """Take what a process says of the workers' room, in which it counted these requests."""
        for key in booked:
            self._unbooked.pop(key, None)
        self._left, self._is_asleep = left, is_asleep
        self.admission.look()

    def _has_room(self, num_tokens: int) -> bool:
        oldest_s = time.monotonic() - BOOKED_S
        unbooked = [tokens for tokens, at_s in self._unbooked.values() if at_s > oldest_s]
        left = self._left
        return len(unbooked) < left.num_prompts and num_tokens + sum(unbooked) <= left.num_tokens


class Permits:
    """The limits of tenants."""

    def __init__(self) -> None:
        self.limits = TenantLimits()
        self._stays: Stays[int] = Stays()

    def enter(self, key: Key, tenant: Sequence[Any], num_tokens: int) -> asyncio.Future[Any]:
        """Return an error for the wire or None, and the tenant's headers. It counts until `pay`."""
        of = tenant_from_wire(tenant)

        async def hold(stay: Stay[int]) -> None:
            try:
                async with self.limits.enter(of, num_tokens) as permit:
                    stay.begun.set_result([None, self.limits.headers(of)])
                    permit.num_tokens = await stay.ended
            except BatonError as error:
                stay.begun.set_result([error_to_wire(error), self.limits.headers(of)])

        return self._stays.begin(key, hold)

    def pay(self, key: Key, num_tokens: int) -> None:
        """End a request that used so many tokens. Ignores unknown ones."""
        self._stays.end(key, num_tokens)

    def drop(self, process: int) -> None:
        """Give back all that a process holds: it has ended."""
        self._stays.drop(process)


class Locks:
    """Locks by name, each for one process at a time, in order of arrival."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._stays: Stays[None] = Stays()

    def take(self, key: Key, name: str) -> asyncio.Future[Any]:
        """Return what is done when the process has the lock. It has it until `give`."""

        async def hold(stay: Stay[None]) -> None:
            async with self._locks.setdefault(name, asyncio.Lock()):
                stay.begun.set_result(None)
                await stay.ended

        return self._stays.begin(key, hold)

    def give(self, key: Key) -> None:
        """Give a lock back, or give up waiting for it. Ignores unknown ones."""
        self._stays.end(key, None)

    def drop(self, process: int) -> None:
        """Give back all that a process has: it has ended."""
        self._stays.drop(process)
