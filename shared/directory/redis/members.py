"""The live workers, as far as Redis shows them.

Absence from Redis means that a worker is gone only if it could have renewed its lease: after an
outage, a restart or a FLUSHALL every worker gets the time of its lease to come back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog

from shared.directory.base import RegistryChange, RegistryEvent
from shared.directory.watchers import Watcher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from shared.directory.redis.reading import LeaseState
    from shared.identity import WorkerId

log = structlog.get_logger(__name__)

#: Delay after which the end of a lease is noticed.
_MARGIN_S = 0.005


@dataclass(slots=True)
class _Member:
    event: RegistryEvent
    lease_s: float
    ends_s: float


class Members:
    """Live workers. For one event loop; no method waits except `watch`."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._members: dict[WorkerId, _Member] = {}
        self._watchers: set[Watcher] = set()
        self._leave_listeners: list[Callable[[WorkerId], None]] = []
        self._epoch: bytes | None = None
        #: Since when every read of Redis has succeeded, on the same data.
        self._steady_since_s: float | None = None

    def knows(self, worker: WorkerId) -> bool:
        """Return whether this incarnation counts as alive."""
        return worker in self._members

    def workers(self) -> list[RegistryEvent]:
        """Return all live workers, each as a JOINED event."""
        return [member.event for member in self._members.values()]

    async def watch(self) -> AsyncIterator[RegistryEvent]:
        """See WorkerRegistry. A slow caller gets the latest load only, but every join and leave."""
        watcher = Watcher()
        for event in self.workers():
            watcher.put(event)
        self._watchers.add(watcher)
        try:
            while True:
                while (event_or_none := watcher.pop()) is not None:
                    yield event_or_none
                await watcher.wait()
        finally:
            self._watchers.discard(watcher)

    def on_leave(self, listener: Callable[[WorkerId], None]) -> None:
        """Call `listener` when an incarnation leaves, before any watcher gets the event."""
        self._leave_listeners.append(listener)

    def next_end_s(self) -> float:
        """Return the seconds until the first lease may end, if it is not renewed.

        Infinite if there are no members.
        """
        first_s = min((member.ends_s for member in self._members.values()), default=math.inf)
        return max(first_s - self._clock(), 0) + _MARGIN_S

    def lose_contact(self) -> None:
        """Record that Redis is unavailable. Absent workers stay until a lease after its return."""
        self._steady_since_s = None

    def update(self, epoch: bytes, alive: Sequence[tuple[LeaseState, RegistryEvent]]) -> None:
        """Apply the live workers read from Redis."""
        now_s = self._clock()
        if epoch != self._epoch or self._steady_since_s is None:
            self._steady_since_s = now_s
        self._epoch = epoch
        present = {event.record.worker for _, event in alive}
        names = {worker.name for worker in present}
        steady_s = now_s - self._steady_since_s
        for worker, member in list(self._members.items()):
            if worker in present:
                continue
            if worker.name in names or steady_s >= member.lease_s:
                self.leave(worker)
            else:
                member.ends_s = self._steady_since_s + member.lease_s
        for lease, event in alive:
            self._see(event, lease.lease_s, now_s + lease.left_s)

    def leave(self, worker: WorkerId, *, in_order: bool = False) -> None:
        """Remove an incarnation; `in_order`: it deregistered. Unknown ones are ignored."""
        member = self._members.pop(worker, None)
        if member is None:
            return
        log.info("worker_left", worker=str(worker))
        for listener in self._leave_listeners:
            listener(worker)
        self._tell(RegistryChange.LEFT, replace(member.event, in_order=in_order))

    def _see(self, event: RegistryEvent, lease_s: float, ends_s: float) -> None:
        worker = event.record.worker
        change = RegistryChange.UPDATED if worker in self._members else RegistryChange.JOINED
        self._members[worker] = _Member(event, lease_s, ends_s)
        if change is RegistryChange.JOINED:
            log.info("worker_joined", worker=str(worker), role=event.record.role.value)
        self._tell(change, event)

    def _tell(self, change: RegistryChange, event: RegistryEvent) -> None:
        for watcher in self._watchers:
            watcher.put(replace(event, change=change))
