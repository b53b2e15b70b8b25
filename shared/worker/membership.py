"""Keeps a worker known to the directory: registration, heartbeats, block updates.

It runs on the service's event loop, which the engine's thread cannot starve. Losing the directory
costs cache hits and visibility, never a request: everything is repeated until it works again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog

from shared.directory.base import BlockUpdate, WorkerLoad
from shared.errors import BatonError, SequenceGapError, UnknownIncarnationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shared.directory.base import BlockDirectory, WorkerRecord, WorkerRegistry
    from shared.engine.engine_thread import EngineThread
    from shared.engine.events import CacheChange
    from shared.worker.gate import RequestGate

log = structlog.get_logger(__name__)

LEASE_S = 6.0
HEARTBEAT_S = LEASE_S / 3
#: Updates that pile up while the directory is away are replaced by one snapshot.
MAX_PENDING_CHANGES = 10_000


@dataclass(slots=True)
class _Position:
    """Where this worker is in its stream of updates."""

    sequence: int = 0
    needs_snapshot: bool = True


class Membership:
    """One worker's place in the directory. `run` until cancelled, then `leave`."""

    def __init__(
        self,
        *,
        record: WorkerRecord,
        registry: WorkerRegistry,
        blocks: BlockDirectory,
        engine: EngineThread,
        gate: RequestGate,
    ) -> None:
        self._record = record
        self._registry = registry
        self._blocks = blocks
        self._engine = engine
        self._gate = gate
        self._changes: asyncio.Queue[CacheChange] = asyncio.Queue(MAX_PENDING_CHANGES)
        self._position = _Position()
        self._connected = True

    def note(self, change: CacheChange) -> None:
        """Queue what changed in the engine's cache. Called on the event loop, in order."""
        try:
            self._changes.put_nowait(change)
        except asyncio.QueueFull:
            self._position.needs_snapshot = True

    async def run(self) -> None:
        """Register, then send heartbeats and updates until cancelled."""
        await self._attempt(self._join)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._beat())
            tasks.create_task(self._publish())

    async def leave(self) -> None:
        """Tell the directory that this worker is going."""
        await self._attempt(self._deregister)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await self._attempt(self._heartbeat)

    async def _publish(self) -> None:
        while True:
            if self._position.needs_snapshot:
                await self._attempt(self._send_snapshot)
                if self._position.needs_snapshot:
                    await asyncio.sleep(HEARTBEAT_S)
                    continue
            change = await self._changes.get()
            if not self._position.needs_snapshot:
                await self._attempt(partial(self._send, change))

    async def _attempt(self, action: Callable[[], Awaitable[None]]) -> None:
        """Run one exchange with the directory; its failure is logged when it begins."""
        try:
            await action()
        except UnknownIncarnationError:
            await self._rejoin()
        except (BatonError, OSError) as error:
            self._position.needs_snapshot = True
            if self._connected:
                log.warning("directory_lost", worker=str(self._record.worker), error=str(error))
            self._connected = False
        else:
            if not self._connected:
                log.info("directory_back", worker=str(self._record.worker))
            self._connected = True

    async def _rejoin(self) -> None:
        self._position.needs_snapshot = True
        try:
            await self._join()
        except (BatonError, OSError) as error:
            log.warning("register_failed", worker=str(self._record.worker), error=str(error))

    async def _join(self) -> None:
        await self._registry.register(self._record, LEASE_S)
        log.info("registered", worker=str(self._record.worker))

    async def _deregister(self) -> None:
        await self._registry.deregister(self._record.worker)

    async def _heartbeat(self) -> None:
        stats = self._engine.stats()
        load = WorkerLoad(
            num_running=stats.num_running,
            num_waiting=stats.num_waiting,
            num_free_blocks=stats.num_free_blocks,
            draining=self._gate.draining,
        )
        await self._registry.heartbeat(self._record.worker, load)

    async def _send_snapshot(self) -> None:
        self._position.needs_snapshot = False
        hashes = await self._engine.cache_snapshot(at_cut=self._forget_changes)
        self._position.sequence += 1
        await self._blocks.replace(self._record.worker, self._position.sequence, hashes)

    def _forget_changes(self) -> None:
        """What is queued so far is part of the snapshot."""
        while not self._changes.empty():
            self._changes.get_nowait()

    async def _send(self, change: CacheChange) -> None:
        self._position.sequence += 1
        update = BlockUpdate(
            worker=self._record.worker,
            sequence=self._position.sequence,
            stored=change.stored,
            removed=change.removed,
            cleared=change.cleared,
        )
        try:
            await self._blocks.publish(update)
        except SequenceGapError:
            self._position.needs_snapshot = True
