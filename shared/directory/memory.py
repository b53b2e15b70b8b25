"""The directory in this process's memory: membership by lease. Knows nothing of the network."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog

from shared.directory.base import RegistryChange, RegistryEvent, WorkerLoad
from shared.directory.probe import check_probe
from shared.directory.watchers import Watcher
from shared.errors import InvalidRequestError, OverloadedError, UnknownIncarnationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from shared.directory.base import WorkerRecord
    from shared.identity import WorkerId

log = structlog.get_logger(__name__)

MAX_WORKERS = 4096


@dataclass(slots=True)
class _Member:
    record: WorkerRecord
    load: WorkerLoad
    lease_s: float
    expires_s: float


class MemoryRegistry:
    """The live workers. For one event loop; no method waits except `watch`."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, max_workers: int = MAX_WORKERS
    ) -> None:
        self._clock = clock
        self._max_workers = max_workers
        self._members: dict[str, _Member] = {}
        self._watchers: set[Watcher] = set()
        self._leave_listeners: list[Callable[[WorkerId], None]] = []
        #: No lease ends before this time; renewals since may make it too early, never too late.
        self._next_expiry_s = math.inf

    async def register(self, record: WorkerRecord, lease_s: float) -> None:
        """See WorkerRegistry. The same incarnation may register again; its blocks stay.

        Raises:
            InvalidRequestError: the lease is not a positive time.
            OverloadedError: there are too many workers.
            IncompatiblePeerError: its block hashes differ from ours.
        """
        check_probe(record)
        if not 0 < lease_s < math.inf:
            raise InvalidRequestError(f"lease_s must be over 0, not {lease_s}", param="lease_s")
        self.expire()
        name = record.worker.name
        known = self._members.get(name)
        if known is not None and known.record.worker != record.worker:
            log.info("worker_replaced", old=str(known.record.worker), new=str(record.worker))
            self._drop(known)
            known = None
        if known is None and len(self._members) >= self._max_workers:
            raise OverloadedError(f"cannot add {record.worker}: {self._max_workers} workers known")
        load = WorkerLoad() if known is None else known.load
        member = _Member(record, load, lease_s, self._clock() + lease_s)
        self._members[name] = member
        self._next_expiry_s = min(self._next_expiry_s, member.expires_s)
        if known is None:
            log.info("worker_joined", worker=str(record.worker), role=record.role.value)
            self._tell(RegistryChange.JOINED, member)

    async def heartbeat(self, worker: WorkerId, load: WorkerLoad) -> None:
        """See WorkerRegistry."""
        member = self._require(worker)
        member.expires_s = self._clock() + member.lease_s
        member.load = load
        self._tell(RegistryChange.UPDATED, member)

    async def deregister(self, worker: WorkerId) -> None:
        """See WorkerRegistry."""
        member = self._members.get(worker.name)
        if member is not None and member.record.worker == worker:
            log.info("worker_left", worker=str(worker))
            self._drop(member, in_order=True)

    async def workers(self) -> list[RegistryEvent]:
        """See WorkerRegistry."""
        self.expire()
        return [_event(RegistryChange.JOINED, member) for member in self._members.values()]

    async def watch(self) -> AsyncIterator[RegistryEvent]:
        """See WorkerRegistry. A slow caller gets the latest load only, but every join and leave."""
        watcher = Watcher()
        for present in await self.workers():
            watcher.put(present)
        self._watchers.add(watcher)
        try:
            while True:
                self.expire()
                while (event := watcher.pop()) is not None:
                    yield event
                await watcher.wait(self._next_expiry_s - self._clock())
        finally:
            self._watchers.discard(watcher)

    def record(self, worker: WorkerId) -> WorkerRecord:
        """Return a live worker's record.

        Raises:
            UnknownIncarnationError: it is not registered, or its lease has ended.
        """
        return self._require(worker).record

    def expire(self) -> None:
        """Drop all workers whose lease has ended."""
        now = self._clock()
        if now < self._next_expiry_s:
            return
        for member in [m for m in self._members.values() if m.expires_s <= now]:
            log.warning("worker_lease_ended", worker=str(member.record.worker))
            self._drop(member)
        self._next_expiry_s = min((m.expires_s for m in self._members.values()), default=math.inf)

    def on_leave(self, listener: Callable[[WorkerId], None]) -> None:
        """Call `listener` when an incarnation leaves, before any watcher gets the event."""
        self._leave_listeners.append(listener)

    def _require(self, worker: WorkerId) -> _Member:
        self.expire()
        member = self._members.get(worker.name)
        if member is None or member.record.worker != worker:
            raise UnknownIncarnationError(f"{worker} is not registered")
        return member

    def _drop(self, member: _Member, *, in_order: bool = False) -> None:
        del self._members[member.record.worker.name]
        for listener in self._leave_listeners:
            listener(member.record.worker)
        self._tell(RegistryChange.LEFT, member, in_order=in_order)

    def _tell(self, change: RegistryChange, member: _Member, *, in_order: bool = False) -> None:
        event = replace(_event(change, member), in_order=in_order)
        for watcher in self._watchers:
            watcher.put(event)


def _event(change: RegistryChange, member: _Member) -> RegistryEvent:
    return RegistryEvent(change=change, record=member.record, load=member.load)
