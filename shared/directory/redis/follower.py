"""Keeps a router's local copy of the directory up to date with Redis: workers and blocks.

Deltas come by the stream. If they leave something unexplained (a gap, an unknown incarnation, a
worker's new snapshot), the follower reads that worker's set, and only that. Requests never wait for
Redis: they use the last copy, however old.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING

import structlog

from shared.directory.index import BlockIndex
from shared.directory.redis.members import Members
from shared.directory.redis.reading import DamageEntry, MalformedError, read_entry
from shared.directory.redis.roster import Roster
from shared.directory.redis.store import id_order
from shared.errors import DeadlineError, InvalidRequestError, SequenceGapError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shared.directory.base import BlockUpdate, RefusedWorker
    from shared.directory.redis.keys import Kind
    from shared.directory.redis.reading import DirectoryState
    from shared.directory.redis.seal import RecordSeals, SealFault
    from shared.directory.redis.store import RedisStore
    from shared.identity import WorkerId

log = structlog.get_logger(__name__)

#: Seconds between two reads of the live workers; also the longest wait for the stream.
POLL_S = 1.0
FIRST_RETRY_S = 0.05
LONGEST_RETRY_S = 1.0
_ENTRIES_PER_TRIP = 500


class RedisFollower:
    """Feeds `index` and `members`. Call `run` until cancelled; both can be read at any time."""

    def __init__(
        self,
        store: RedisStore,
        *,
        seals: RecordSeals | None = None,
        index: BlockIndex | None = None,
        poll_s: float = POLL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self.index = BlockIndex() if index is None else index
        self.members = Members(clock=clock)
        self._poll_s = poll_s
        self._clock = clock
        self._roster = Roster(store, seals)
        self._position: bytes | None = None
        #: Workers for which the index may differ from Redis.
        self._stale: set[WorkerId] = set()
        self._look_again = False
        self.num_snapshots = 0
        self._num_malformed = 0
        self.connected = False
        self.members.on_leave(self._forget)

    @property
    def num_malformed(self) -> int:
        """Number of entries, snapshots, leases, records and blocks that could not be read."""
        return self._num_malformed + self._roster.num_malformed + self._store.num_malformed

    @property
    def refused(self) -> Sequence[RefusedWorker]:
        """Workers whose records are refused."""
        return self._roster.refused

    def num_refused(self, fault: SealFault) -> int:
        """Return how often a record was newly refused for this fault."""
        return self._roster.faults[fault]

    def num_damaged(self, kind: Kind) -> int:
        """Return how many keys of this kind were set aside, here or elsewhere."""
        return self._store.damage.counts[kind]

    async def run(self) -> None:
        """Follow until cancelled. Without Redis the last copy stays."""
        retry_s = FIRST_RETRY_S
        while True:
            try:
                await self.refresh(self._clock() + self._poll_s)
                if not self.connected:
                    log.info("redis_followed", num_workers=len(self.members.workers()))
                self.connected = True
                retry_s = FIRST_RETRY_S
                await self._follow_tail()
            except (UnavailableError, DeadlineError) as error:
                if self.connected or retry_s == FIRST_RETRY_S:
                    log.warning("redis_lost", error=str(error))
                self.connected = False
                self.members.lose_contact()
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, LONGEST_RETRY_S)

    async def refresh(self, until_s: float = math.inf) -> None:
        """Update the copy to the present state of Redis; begin to read no blocks after `until_s`.

        Many workers' blocks take minutes: meanwhile workers join, and leases end.
        """
        state = await self._store.state()
        if state.damaged:
            await self._store.set_aside_leases(state.damaged)
            state = await self._store.state()
        await self._catch_up(state)
        leases = await self._roster.read(state.leases)
        self.members.update(state.epoch, leases)
        for lease, event in leases:
            self._compare(event.record.worker, lease.sequence)
        await self._read_stale(until_s)

    def _compare(self, worker: WorkerId, sequence: int) -> None:
        """Have the worker's blocks read again if the index differs from its lease."""
        known = self.index.sequence(worker)
        if known is not None and known > sequence:
            # Redis has started anew, or the accepted data was never the worker's.
            self.index.forget(worker)
        if known != sequence:
            self._stale.add(worker)

    async def _catch_up(self, state: DirectoryState) -> None:
        """Apply everything up to the state's own entry, so that both can be compared."""
        last = id_order(state.last_id)
        if self._position is None or id_order(self._position) > last:
            # The first read, or a stream that starts anew.
            self._position = state.last_id
            return
        while id_order(self._position) < last:
            entries = await self._store.tail(self._position, wait_s=None, count=_ENTRIES_PER_TRIP)
            if not entries:
                break
            self._apply_all(entries)

    async def _follow_tail(self) -> None:
        """Apply entries until the leases are to be read again."""
        until_s = self._clock() + min(self._poll_s, self.members.next_end_s())
        self._look_again = False
        while (left_s := until_s - self._clock()) > 0 and not self._look_again:
            entries = await self._store.tail(
                self._position or b"0-0",
                wait_s=None if self._stale else left_s,
                count=_ENTRIES_PER_TRIP,
            )
            self._apply_all(entries)
            await self._read_stale(until_s)

    def _apply_all(self, entries: Sequence[tuple[bytes, dict[bytes, bytes]]]) -> None:
        for entry_id, fields in entries:
            self._apply(fields)
            self._position = entry_id

    def _apply(self, fields: dict[bytes, bytes]) -> None:
        try:
            entry = read_entry(fields)
        except MalformedError as error:
            # The worker is unknown: the leases will show which worker's blocks differ.
            self._num_malformed += 1
            log.warning("entry_malformed", reason=str(error))
            self._look_again = True
            return
        if isinstance(entry, DamageEntry):
            self._store.damage.told(entry.key, entry.by)
            self._look_again = True
            return
        worker = entry.worker
        if entry.kind == b"left":
            self.members.leave(worker, in_order=True)
        elif entry.kind == b"joined" or not self.members.knows(worker):
            self._look_again = True
        elif entry.update is not None:
            self._apply_delta(entry.update)
        elif (self.index.sequence(worker) or 0) < entry.sequence:
            self._stale.add(worker)

    def _apply_delta(self, update: BlockUpdate) -> None:
        if update.worker in self._stale:
            # Its set, which is read later, has it.
            return
        try:
            self.index.apply(update)
        except (SequenceGapError, InvalidRequestError) as error:
            log.info("snapshot_needed", worker=str(update.worker), reason=str(error))
            self._stale.add(update.worker)

    async def _read_stale(self, until_s: float) -> None:
        """Read the blocks of one worker, and of others until the time is over."""
        for worker in list(self._stale):
            if self.members.knows(worker):
                await self._read_one(worker)
            # An incarnation that is no longer known is left to the members.
            self._stale.discard(worker)
            if self._clock() >= until_s:
                return

    async def _read_one(self, worker: WorkerId) -> None:
        try:
            found = await self._store.snapshot(worker)
        except MalformedError as error:
            self._num_malformed += 1
            log.warning("snapshot_malformed", worker=str(worker), reason=str(error))
            return
        if found is not None:
            self.num_snapshots += 1
            for _ in self.index.replacing(worker, *found):
                await asyncio.sleep(0)

    def _forget(self, worker: WorkerId) -> None:
        self._stale.discard(worker)
        self.index.forget(worker)
