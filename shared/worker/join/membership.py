"""A worker's membership of the directory: registration and block updates.

It runs on the service's event loop; the lease is renewed in a thread (`heart.py`), which reports
each renewal here. Losing the directory costs cache hits and visibility, never a request: every
exchange is repeated until it succeeds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

import structlog

from shared.directory.base import BlockUpdate
from shared.errors import (
    BatonError,
    IncompatiblePeerError,
    SequenceGapError,
    UnknownIncarnationError,
)
from shared.kv.identity import group_of
from shared.worker.join.change_batch import take_batch
from shared.worker.join.founding import Founding

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shared.directory.base import BlockDirectory, WorkerRecord, WorkerRegistry
    from shared.engine.sequence.events import CacheChange
    from shared.kv.tier import BlockTier

log = structlog.get_logger(__name__)

LEASE_S = 6.0
HEARTBEAT_S = LEASE_S / 3
#: Seconds between two reads of the other workers of a worker's generation.
LOOK_S = 15.0
#: Longest time between two snapshots that the directory does not take: it may be full.
MAX_SNAPSHOT_WAIT_S = 60.0
#: Longest wait of an ending worker for its directory.
LEAVE_S = 2.0
#: The directory follows one group of layers: a prefix is never longer than what any group has, and
#: a wrong entry costs one lookup.
_TOLD_GROUP = 0
#: Maximum of updates that wait while the directory is unavailable; then one snapshot replaces them.
MAX_PENDING_CHANGES = 10_000
#: Waiting changes are sent together, up to this size: one round trip instead of many.
MAX_HASHES_PER_UPDATE = 1024


#: Names in the log, of the beginning and the end.
_LEASE = ("directory_lost", "directory_back")
_BLOCKS = ("blocks_not_told", "blocks_told")


class HasBlocks(Protocol):
    """The blocks that a directory hears of; an `EngineThread` has some."""

    def on_cache_change(self, callback: Callable[[CacheChange], None]) -> None:
        """See `EngineThread.on_cache_change`."""
        ...

    async def tier_snapshots(
        self, at_cut: Callable[[], None] | None = None
    ) -> dict[BlockTier, list[bytes]]:
        """See `EngineThread.tier_snapshots`."""
        ...


class Membership:
    """One worker's entry in the directory. Call `run` until cancelled, then `leave`."""

    def __init__(
        self,
        *,
        record: WorkerRecord,
        registry: WorkerRegistry,
        blocks: BlockDirectory,
        engine: HasBlocks,
    ) -> None:
        self._record = record
        self._registry = registry
        self._blocks = blocks
        self._engine = engine
        #: The founding of its generation; None before the other workers were read.
        self._founding: Founding | None = None
        self._changes: deque[CacheChange] = deque()
        #: Number of the last update; an incarnation's updates count from 1.
        self._sequence = 0
        self._needs_snapshot = True
        self._has_news = asyncio.Event()
        self._has_news.set()
        #: What the directory has not taken: `_LEASE` or `_BLOCKS`.
        self._lost: set[tuple[str, str]] = set()
        #: Set when the directory answers again, and by a registration: a snapshot goes at once.
        self._is_back = asyncio.Event()
        #: Called after every registration: the directory knows nothing of the worker's state yet.
        self.on_registered: Callable[[], None] = lambda: None
        self._beats: deque[Exception | None] = deque(maxlen=1)
        self._has_beat = asyncio.Event()

    def on_beat(self, error: Exception | None) -> None:
        """Process a renewal of the lease, or its error. Called on the event loop."""
        self._beats.append(error)
        self._has_beat.set()

    def note(self, change: CacheChange) -> None:
        """Queue a change of the engine's cache. Called on the event loop, in order."""
        self._changes.append(change.of_group(_TOLD_GROUP))
        if len(self._changes) > MAX_PENDING_CHANGES:
            self._require_snapshot()
        self._has_news.set()

    async def run(self) -> None:
        """Register, then send updates until cancelled; register again if need be.

        Raises:
            IncompatiblePeerError: the directory refuses this worker, which must not serve. It may
                come in an exception group.
        """
        await self._attempt(self._join)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_again_and_again())
            tasks.create_task(self._follow_beats())
            tasks.create_task(self._publish())

    async def leave(self) -> None:
        """Deregister this worker, within a time limit."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._attempt(self._deregister)

    async def _follow_beats(self) -> None:
        while True:
            await self._has_beat.wait()
            self._has_beat.clear()
            while self._beats:
                await self._attempt(partial(_outcome, self._beats.popleft()))

    async def _publish(self) -> None:
        wait_s = HEARTBEAT_S
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            self._is_back.clear()
            if self._needs_snapshot:
                await self._attempt(self._send_snapshot, _BLOCKS)
            while self._changes and not self._needs_snapshot:
                await self._attempt(self._send_changes, _BLOCKS)
            if not self._needs_snapshot:
                wait_s = HEARTBEAT_S
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._is_back.wait()
            wait_s = min(2 * wait_s, MAX_SNAPSHOT_WAIT_S)

    def _require_snapshot(self) -> None:
        """Replace the waiting updates by a snapshot."""
        self._needs_snapshot = True
        self._changes.clear()
        self._has_news.set()

    async def _attempt(
        self, action: Callable[[], Awaitable[None]], part: tuple[str, str] = _LEASE
    ) -> None:
        """Run one exchange with the directory; a failure of a part is logged when it begins."""
        begins, ends = part
        try:
            await action()
        except IncompatiblePeerError:
            raise
        except UnknownIncarnationError:
            await self._rejoin()
        except (BatonError, OSError) as error:
            self._require_snapshot()
            if part not in self._lost:
                log.warning(begins, worker=str(self._record.worker), error=str(error))
            self._lost.add(part)
        else:
            if part in self._lost:
                log.info(ends, worker=str(self._record.worker))
                self._lost.remove(part)
                self._is_back.set()

    async def _rejoin(self) -> None:
        self._require_snapshot()
        try:
            await self._join()
        except IncompatiblePeerError:
            raise
        except (BatonError, OSError) as error:
            log.warning("register_failed", worker=str(self._record.worker), error=str(error))
        else:
            # One that was sent meanwhile may have come before the registration, which drops it.
            self._require_snapshot()

    async def _join(self) -> None:
        if self._founding is None:
            others = [event.record for event in await self._registry.workers()]
            self._founding = Founding(self._record, others)
        self._record = self._founding.record
        await self._registry.register(self._record, LEASE_S)
        log.info("registered", worker=str(self._record.worker))
        self._is_back.set()
        self.on_registered()

    async def _look_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self._attempt(self._look_again)

    async def _look_again(self) -> None:
        """Send the record again if the worker's knowledge of its generation has changed."""
        if self._founding is None:
            return
        present = [event.record for event in await self._registry.workers()]
        if self._founding.look(present):
            await self._join()

    async def _deregister(self) -> None:
        await self._registry.deregister(self._record.worker)

    async def _send_snapshot(self) -> None:
        self._needs_snapshot = False
        # Changes that are queued before the cut are part of the snapshot.
        keys = await self._engine.tier_snapshots(at_cut=self._changes.clear)
        hashes = {
            tier: [key for key in held if group_of(key) == _TOLD_GROUP]
            for tier, held in keys.items()
        }
        self._sequence += 1
        await self._blocks.replace(self._record.worker, self._sequence, hashes)

    async def _send_changes(self) -> None:
        change = take_batch(self._changes, MAX_HASHES_PER_UPDATE)
        self._sequence += 1
        update = BlockUpdate(
            worker=self._record.worker,
            sequence=self._sequence,
            stored=change.stored,
            removed=change.removed,
            cleared=change.cleared,
            tier=change.tier,
        )
        try:
            await self._blocks.publish(update)
        except SequenceGapError:
            self._require_snapshot()


async def _outcome(error: Exception | None) -> None:
    if error is not None:
        raise error
