"""The two threads that move bytes: one copies memory, one reads and writes files.

So a slow disk never delays a copy. Every job comes back on `done`, except removals.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

import numpy as np
import structlog

from shared.connector.protocol.block_copy import checksum_blocks
from shared.engine.offload.disk.block_file import CorruptBlockError
from shared.engine.offload.jobs import LandJob, LoadJob, RemoveJob, StoreJob, WriteJob
from shared.errors import InternalError
from shared.kv.identity import group_of
from shared.kv.tier import BlockTier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shared.engine.offload.copies import BlockCopies
    from shared.engine.offload.disk.block_folder import BlockFolder
    from shared.engine.offload.jobs import CopyJob, Job
    from shared.kv.memory import KVMemory

log = structlog.get_logger(__name__)


class _DiskQueue:
    """Reads first: sequences wait for them. They never depend on a queued write."""

    def __init__(self) -> None:
        self._reads: deque[LoadJob] = deque()
        self._writes: deque[WriteJob | RemoveJob | None] = deque()
        self._changed = threading.Condition()

    def put(self, job: LoadJob | WriteJob | RemoveJob | None) -> None:
        """Add a job. None ends the thread after all earlier jobs."""
        with self._changed:
            if isinstance(job, LoadJob):
                self._reads.append(job)
            else:
                self._writes.append(job)
            self._changed.notify()

    def get(self) -> LoadJob | WriteJob | RemoveJob | None:
        with self._changed:
            while not (self._reads or self._writes):
                self._changed.wait()
            return self._reads.popleft() if self._reads else self._writes.popleft()


class TierThreads:
    """Moves bytes between the tiers. Call `start` first; `close` finishes submitted jobs."""

    def __init__(self, copies: BlockCopies, folder: BlockFolder | None) -> None:
        #: Finished jobs, in order.
        self.done: queue.SimpleQueue[Job] = queue.SimpleQueue()
        #: Called in one of these threads after a job was added to `done`.
        self.on_done: Callable[[], None] = lambda: None
        self._copies = copies
        self._folder = folder
        #: The checksum of the block in each slot.
        self._checksums = np.zeros(len(copies.host), np.uint64)
        self._copy_queue: queue.SimpleQueue[CopyJob | None] = queue.SimpleQueue()
        self._disk_queue = _DiskQueue()
        self._threads = [threading.Thread(target=self._copy, name="kv-offload-copy", daemon=True)]
        if folder is not None:
            self._threads.append(
                threading.Thread(target=self._disk, name="kv-offload-disk", daemon=True)
            )

    @property
    def memory(self) -> KVMemory | None:
        """See `BlockCopies.memory`."""
        return self._copies.memory

    def start(self) -> None:
        """Take jobs from now on."""
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> None:
        """Queue a job; it comes back on `done`."""
        if isinstance(job, StoreJob | LoadJob | LandJob):
            self._copy_queue.put(job)
        else:
            self._disk_queue.put(job)

    def read(self, job: LoadJob) -> None:
        """Queue the disk reads of a load."""
        self._disk_queue.put(job)

    def write_of(self, key: bytes, slot: int) -> WriteJob:
        """Return the job that writes a slot's block to disk.

        No copy into the slot may be running.
        """
        return WriteJob(
            key=key, data=self._copies.host[slot].copy(), checksum=int(self._checksums[slot])
        )

    def end(self) -> None:
        """Have the threads end when they have done what is queued; wait for nothing."""
        self._copy_queue.put(None)
        self._disk_queue.put(None)

    def close(self) -> None:
        """End the threads and free the memory and the folder."""
        # Copies queue work for the disk: they end first.
        self._copy_queue.put(None)
        self._threads[0].join()
        if self._folder is not None:
            self._disk_queue.put(None)
            self._threads[1].join()
            self._folder.close()
        self._copies.close()

    def _copy(self) -> None:
        while (job := self._copy_queue.get()) is not None:
            self.run_copy(job)

    def _disk(self) -> None:
        while (job := self._disk_queue.get()) is not None:
            self.run_disk(job)

    def run_copy(self, job: CopyJob) -> None:
        """Run the next part of a job that copies memory, in the copying thread."""
        try:
            for key, slot in job.spills:
                self.submit(self.write_of(key, slot))
            job.spills = ()
            if isinstance(job, StoreJob):
                self._store(job)
            elif isinstance(job, LandJob):
                self._seal(job)
            elif BlockTier.DISK in job.tiers and not job.was_read:
                job.queued_s = time.monotonic()
                self.read(job)
                return
            else:
                self._load(job)
        except Exception as error:  # any error must reach the job's owner
            log.exception("kv_offload_copy_failed")
            job.error = error
        self._tell(job)

    def run_disk(self, job: LoadJob | WriteJob | RemoveJob) -> None:
        """Read, write or delete a job's files, in the disk's thread."""
        folder = self._folder
        if folder is None:
            raise InternalError("there is no disk tier")
        if isinstance(job, LoadJob):
            self._read(job, folder)
            self.submit(job)
        elif isinstance(job, RemoveJob):
            folder.remove(job.keys)
        else:
            start_s = time.monotonic()
            try:
                job.saved_bytes = folder.write(
                    job.key, job.data, job.checksum, used_at_s=job.used_at_s
                )
            except OSError as error:
                job.error = error
            job.seconds = time.monotonic() - start_s
            self._tell(job)

    def _store(self, job: StoreJob) -> None:
        start_s = time.monotonic()
        checksums = self._copies.to_host(job.blocks, job.slots, _groups(job.keys))
        self._checksums[list(job.slots)] = checksums
        job.seconds = time.monotonic() - start_s

    def _seal(self, job: LandJob) -> None:
        if job.slots:
            rows = [self._copies.host[slot] for slot in job.slots]
            self._checksums[list(job.slots)] = checksum_blocks(rows)

    def _read(self, job: LoadJob, folder: BlockFolder) -> None:
        """Fill the slots of blocks on disk, up to the first that fails."""
        job.was_read = True
        try:
            for key, tier, slot in zip(job.keys, job.tiers, job.slots, strict=True):
                if tier is BlockTier.DISK:
                    self._checksums[slot] = folder.read(key, self._copies.host[slot])
                    job.read.add(key)
        except (OSError, CorruptBlockError) as error:
            job.error = error
        now_s = time.monotonic()
        job.seconds[BlockTier.DISK], job.queued_s = now_s - job.queued_s, now_s

    def _load(self, job: LoadJob) -> None:
        """Copy the content of slots, and compare it with what was stored."""
        num = 0
        for key, tier in zip(job.keys, job.tiers, strict=True):
            if tier is BlockTier.DISK and key not in job.read:
                break
            num += 1
        slots = job.slots[:num]
        actual = self._copies.to_device(slots, job.blocks[:num], _groups(job.keys[:num]))
        wrong = np.flatnonzero(actual != self._checksums[list(slots)])
        if len(wrong):
            num = int(wrong[0])
            job.error = CorruptBlockError(f"block {job.keys[num].hex()} changed in host memory")
            log.error("kv_offload_memory_corrupt", block=job.keys[num].hex())
        job.num_loaded, job.finished_s = num, time.monotonic()
        job.seconds[BlockTier.HOST] = job.finished_s - job.queued_s

    def _tell(self, job: Job) -> None:
        self.done.put(job)
        self.on_done()


def _groups(keys: Iterable[bytes]) -> list[int]:
    return [group_of(key) for key in keys]
