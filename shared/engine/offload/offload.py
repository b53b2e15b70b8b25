"""Moves KV blocks between the engine's pool and the tiers below it. Used in the engine's thread.

Blocks are copied to the host tier as soon as they are final, so that evicting one from the pool
costs nothing; what the host tier evicts goes to disk. Threads move the bytes; every block that they
read or write has a reference of its own, so that it is not reused meanwhile.
"""

from __future__ import annotations

import time
import weakref
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING

from shared.engine.offload.jobs import LandJob, LoadJob, StoreJob, WriteJob
from shared.engine.offload.stats import TierStats
from shared.engine.offload.stores import HostStores
from shared.kv.tier import BlockTier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shared.engine.offload.disk.tier import DiskTier
    from shared.engine.offload.jobs import Job
    from shared.engine.offload.landings import SlotLandings
    from shared.engine.offload.loads import PrefixLoads
    from shared.engine.offload.tier_set import TierSet
    from shared.kv.change_log import CacheChange
    from shared.kv.offload.load_rule import LoadRule

#: Time at shutdown for writing what only memory has to disk.
_FLUSH_S = 5.0
#: Steps with fewer tokens do not show how long a prompt takes.
_MIN_MEASURED_TOKENS = 32


class KVOffload:
    """The tiers below one pool. Call `close` before the engine's memory is freed.

    If it is never called, the threads end when nothing refers to this, and what only host memory
    has is lost.
    """

    def __init__(
        self,
        tiers: TierSet,
        loads: PrefixLoads,
        landings: SlotLandings,
        rule: LoadRule,
        *,
        block_bytes: int,
    ) -> None:
        """Make it of its parts, which all use `tiers`."""
        self.stores = HostStores(tiers)
        self.loads = loads
        self.landings = landings
        self._tiers = tiers
        self._host, self._disk, self._threads = tiers.host, tiers.disk, tiers.threads
        self._rule = rule
        self._block_bytes = block_bytes
        #: Jobs that have ended and that `poll` has not processed yet.
        self._deferred: list[Job] = []
        # Threads never end by themselves, not even those of a program that forgot its engine.
        self._forgotten = weakref.finalize(self, tiers.threads.end)
        self._forgotten.atexit = False

    @property
    def is_loading(self) -> bool:
        """Whether a job is in progress that a sequence waits for."""
        jobs = (*self._tiers.jobs, *self._deferred)
        return any(isinstance(job, LoadJob | LandJob) for job in jobs)

    @property
    def is_busy(self) -> bool:
        """Whether a job is in progress, or waits to begin."""
        waiting = self.stores.num_waiting or self._num_pending_writes
        return bool(waiting or self._tiers.jobs or self._deferred)

    def on_news(self, callback: Callable[[], None]) -> None:
        """Call back, in another thread, whenever `poll` has something to do."""
        self._threads.on_done = callback

    def note_step(self, num_tokens: Iterable[int], seconds: float) -> None:
        """Record a step that computed this number of tokens of each of its sequences."""
        counts = list(num_tokens)
        total = sum(counts)
        if total >= _MIN_MEASURED_TOKENS and total > len(counts):
            self._rule.note_computed(total, seconds, time.monotonic())

    def touch(self, keys: Sequence[bytes]) -> None:
        """Record that a sequence uses this prefix."""
        self._host.touch(reversed(keys))
        if self._disk is not None:
            self._disk.manager.touch(reversed(keys))

    def poll(self) -> bool:
        """Process the jobs that have ended; return whether there was one."""
        jobs, self._deferred = self._deferred, []
        while not self._threads.done.empty():
            jobs.append(self._threads.done.get())
        for job in jobs:
            self._end(job)
        return bool(jobs)

    def wait(self) -> None:
        """Wait for a job, then `poll`. Call it only while a job is in progress."""
        if not self._deferred:
            self._deferred.append(self._threads.done.get())
        self.poll()

    def end_stores(self) -> bool:
        """Wait until no store uses blocks of the pool; return whether one did. Takes milliseconds.

        Called before a sequence would be preempted for lack of a block.
        """
        had_stores = self.stores.num_storing > 0
        while self.stores.num_storing:
            job = self._threads.done.get()
            if isinstance(job, StoreJob):
                self._end(job)
            else:
                self._deferred.append(job)
        return had_stores

    def settle(self) -> None:
        """Wait until no job is in progress."""
        while self._tiers.jobs or self._deferred or self._num_pending_writes:
            self.wait()

    def clear(self) -> None:
        """Drop everything. Call it only after `settle`."""
        self.stores.forget()
        self._host.clear()
        if self._disk is not None:
            self._tiers.remove(tuple(self._disk.manager.ready_keys()))
            self._disk.manager.clear()

    def references(self) -> Counter[int]:
        """Return the blocks of the pool that are being copied, and the number of copies of each."""
        return Counter(block for job in self._tiers.jobs for block in job.blocks)

    def take_changes(self) -> list[CacheChange]:
        """Return the changes of the tiers since the last call."""
        changes = self._host.changes.take()
        return changes if self._disk is None else changes + self._disk.manager.changes.take()

    def snapshots(self) -> dict[BlockTier, list[bytes]]:
        """Return every block that each tier has now."""
        held = {BlockTier.HOST: self._host.ready_keys()}
        if self._disk is not None:
            held[BlockTier.DISK] = self._disk.manager.ready_keys()
        return held

    def stats(self) -> dict[BlockTier, TierStats]:
        """Return a snapshot."""
        host = TierStats(
            num_blocks=self._host.num_ready,
            num_bytes=self._host.num_ready * self._block_bytes,
            capacity_bytes=self._host.capacity * self._block_bytes,
            is_available=True,
            counters=asdict(self._tiers.counters),
        )
        if self._disk is None:
            return {BlockTier.HOST: host}
        return {BlockTier.HOST: host, BlockTier.DISK: self._disk.stats()}

    def check_integrity(self) -> None:
        """Raise InternalError if the index of a tier contradicts itself."""
        self._host.check_integrity()
        if self._disk is not None:
            self._disk.manager.check_integrity()

    def close(self) -> None:
        """Finish jobs in progress, save what only memory has to disk, end the threads."""
        self._forgotten.detach()
        self.on_news(lambda: None)
        end_s = time.monotonic() + _FLUSH_S
        if self._disk is not None:
            self._finish_stores(end_s)
        self.stores.forget()
        self.settle()
        if self._disk is not None:
            self._flush(self._disk, end_s)
        self._threads.close()

    @property
    def _num_pending_writes(self) -> int:
        return 0 if self._disk is None else self._disk.num_pending_writes

    def _end(self, job: Job) -> None:
        if isinstance(job, StoreJob):
            self.stores.end(job)
        elif isinstance(job, LoadJob):
            self.loads.end(job)
        elif isinstance(job, LandJob):
            self.landings.end(job)
        elif isinstance(job, WriteJob) and self._disk is not None:
            self._disk.written(job)

    def _finish_stores(self, end_s: float) -> None:
        """Copy final blocks that only the pool has to the host tier, as long as there is time."""
        while self.stores.num_waiting and time.monotonic() < end_s:
            self.stores.start()
            if self.stores.num_waiting:
                self.wait()

    def _flush(self, disk: DiskTier, end_s: float) -> None:
        """Write blocks that only the host tier has, most wanted first, as long as there is time."""
        keys = self._host.ready_keys()[-disk.manager.capacity :]
        slots = self._host.prepare_load(keys)
        start_s = time.time()
        for age, (key, slot) in enumerate(reversed(list(zip(keys, slots, strict=True)))):
            if time.monotonic() > end_s:
                break
            writes, removed = disk.plan_writes(((key, slot),))
            self._tiers.remove(removed)
            for _ in writes:
                job = self._threads.write_of(key, slot)
                job.used_at_s = start_s - age * 1e-6
                self._threads.submit(job)
                self.settle()
        self._host.complete_load(keys)
