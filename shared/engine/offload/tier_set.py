"""The tiers and jobs that loads, stores and spills share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.engine.offload.jobs import RemoveJob
from shared.engine.offload.stats import TierCounters

if TYPE_CHECKING:
    from shared.engine.offload.disk.tier import DiskTier
    from shared.engine.offload.jobs import CopyJob, Slots
    from shared.engine.offload.threads import TierThreads
    from shared.kv.block_pool import BlockPool
    from shared.kv.offload.base import StorePlan
    from shared.kv.offload.manager import BlockOffloadManager


@dataclass(slots=True)
class TierSet:
    """The tiers' indexes, and the threads that move the bytes. Use it in the engine's thread."""

    pool: BlockPool
    host: BlockOffloadManager
    disk: DiskTier | None
    threads: TierThreads
    #: Counters of the host tier.
    counters: TierCounters = field(default_factory=TierCounters)
    #: Submitted, unfinished jobs with references to blocks of the pool.
    jobs: set[CopyJob] = field(default_factory=set)

    def submit(self, job: CopyJob) -> None:
        """Submit a job to the threads. It holds a reference to its blocks."""
        self.pool.acquire(job.blocks)
        self.jobs.add(job)
        self.threads.submit(job)

    def take_back(self, job: CopyJob) -> None:
        """End a job, and drop its references to its blocks. Use the blocks before this call."""
        self.jobs.discard(job)
        self.pool.release(job.blocks)

    def make_room(self, plan: StorePlan) -> Slots:
        """Move blocks evicted by the host tier to disk; return the writes."""
        self.counters.evictions += len(plan.evicted)
        if self.disk is None or not plan.evicted:
            return ()
        writes, removed = self.disk.plan_writes(plan.evicted)
        self.remove(removed)
        return writes

    def remove(self, keys: tuple[bytes, ...]) -> None:
        """Delete files, before any write that is submitted later."""
        if keys:
            self.threads.submit(RemoveJob(keys=keys))
