"""The disk tier in the engine's thread: its index, and the health of the disk."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import structlog

from shared.engine.offload.disk.block_file import CorruptBlockError
from shared.engine.offload.stats import TierCounters, TierStats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.engine.offload.disk.block_folder import BlockFolder
    from shared.engine.offload.jobs import LoadJob, Slots, WriteJob
    from shared.kv.offload.manager import BlockOffloadManager

log = structlog.get_logger(__name__)

#: Time for which a failing disk is not used.
RETRY_S = 30.0


class _Health:
    """The health of one direction. A failure is logged at its beginning and at its end."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.is_failing = False
        self._retry_at_s = 0.0

    @property
    def is_usable(self) -> bool:
        """Whether it works, or a new attempt is due."""
        return not self.is_failing or time.monotonic() >= self._retry_at_s

    def failed(self, error: Exception) -> None:
        if not self.is_failing:
            log.warning(
                "kv_offload_disk_failing", action=self._what, error=str(error), retry_s=RETRY_S
            )
        self.is_failing = True
        self._retry_at_s = time.monotonic() + RETRY_S

    def worked(self) -> None:
        if self.is_failing:
            log.info("kv_offload_disk_works_again", action=self._what)
        self.is_failing = False


class DiskTier:
    """Blocks evicted by the host tier. A full or failing disk costs hits only."""

    def __init__(
        self, folder: BlockFolder, manager: BlockOffloadManager, *, max_pending_writes: int
    ) -> None:
        self.manager = manager
        self.counters = TierCounters()
        self.num_pending_writes = 0
        self._folder = folder
        self._max_pending_writes = max_pending_writes
        self._reading, self._writing = _Health("read"), _Health("write")

    def restore(self) -> None:
        """Find the blocks of an earlier run. Blocks over the capacity are removed, oldest first."""
        keys = self._folder.scan()
        num_surplus = max(0, len(keys) - self.manager.capacity)
        self._folder.remove(keys[:num_surplus])
        self.manager.prepare_store(keys[num_surplus:])
        self.manager.complete_store(keys[num_surplus:], success=True)
        log.info(
            "kv_offload_disk_opened",
            folder=str(self._folder.path),
            num_blocks=self.manager.num_ready,
            capacity_blocks=self.manager.capacity,
        )

    def has(self, key: bytes) -> bool:
        """Return whether the block can be read."""
        return self.manager.is_ready(key) and self._reading.is_usable

    def plan_writes(self, evicted: Slots) -> tuple[Slots, tuple[bytes, ...]]:
        """Return which blocks evicted by the host tier to write, and what to delete before."""
        wanted = {key: slot for key, slot in evicted if key not in self.manager}
        if not self._writing.is_usable:
            self.counters.dropped_stores += len(wanted)
            return (), ()
        room = self._max_pending_writes - self.num_pending_writes
        keys = list(wanted)[:room]
        plan = self.manager.prepare_store(keys)
        if plan is None:
            self.counters.dropped_stores += len(wanted)
            return (), ()
        self.counters.dropped_stores += len(wanted) - len(keys)
        self.counters.evictions += len(plan.evicted)
        self.num_pending_writes += len(plan.stores)
        return tuple((key, wanted[key]) for key in plan.keys), tuple(key for key, _ in plan.evicted)

    def written(self, job: WriteJob) -> None:
        """Process a write that has ended."""
        self.num_pending_writes -= 1
        self.manager.complete_store((job.key,), success=job.error is None)
        self.counters.store_seconds += job.seconds
        if job.error is None:
            self.counters.stores += 1
            self.counters.saved_bytes += job.saved_bytes
            self._writing.worked()
        else:
            self.counters.failed_stores += 1
            self._writing.failed(job.error)

    def loaded(self, job: LoadJob, keys: Sequence[bytes]) -> tuple[bytes, ...]:
        """Process a load of `keys` from here; return the blocks to delete."""
        self.manager.complete_load(keys)
        self.counters.loads += len(job.read)
        missing = next((key for key in keys if key not in job.read), None)
        if missing is None:
            self._reading.worked()
            return ()
        self.counters.failed_loads += 1
        self.manager.forget(missing)
        if isinstance(job.error, CorruptBlockError):
            self.counters.corrupt_blocks += 1
        elif job.error is not None and not isinstance(job.error, FileNotFoundError):
            self._reading.failed(job.error)
        return () if missing in self.manager else (missing,)

    def stats(self) -> TierStats:
        """Return a snapshot."""
        file_bytes = self._folder.file_bytes
        return TierStats(
            num_blocks=self.manager.num_ready,
            num_bytes=self._folder.num_bytes,
            capacity_bytes=self.manager.capacity * file_bytes,
            is_available=not (self._reading.is_failing or self._writing.is_failing),
            counters=asdict(self.counters),
        )
