"""Engines with tiers below their pool, and ways to wait for these or to hold them back."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from shared.engine.offload.disk.block_file import HEADER_BYTES
from shared.engine.offload.jobs import LandJob, LoadJob, StoreJob
from shared.engine.offload.threads import TierThreads
from tests.fakes.engine.engines import BLOCK_SIZE, make_engine

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from shared.engine.engine import Engine
    from shared.engine.offload.copies import BlockCopies
    from shared.engine.offload.disk.block_folder import BlockFolder
    from shared.engine.offload.jobs import CopyJob, Job
    from shared.engine.offload.offload import KVOffload

GIB = 1 << 30
#: Of the fake model's blocks: key and value of two floats for each token.
BLOCK_BYTES = 2 * BLOCK_SIZE * 2 * 4
FILE_BYTES = BLOCK_BYTES + HEADER_BYTES


def tier_settings(
    *, host_blocks: int, disk: Path | None = None, disk_blocks: int = 0
) -> dict[str, Any]:
    """Settings of an engine on the fake model whose tiers hold so many blocks."""
    settings: dict[str, Any] = {
        "kv_offload_host_gib": (host_blocks + 0.5) * BLOCK_BYTES / GIB,
        "kv_offload_always_load": True,
    }
    if disk is not None:
        settings["kv_offload_disk_dir"] = disk
        settings["kv_offload_disk_gib"] = (disk_blocks + 0.5) * FILE_BYTES / GIB
    return settings


def make_tiered_engine(
    *,
    host_blocks: int,
    disk: Path | None = None,
    disk_blocks: int = 0,
    loaded: Any = None,
    **settings: Any,
) -> Engine:
    """A small engine with these tiers; it always loads what it finds there."""
    tiers = tier_settings(host_blocks=host_blocks, disk=disk, disk_blocks=disk_blocks)
    return make_engine(loaded, **(tiers | settings))


def offload_of(engine: Engine) -> KVOffload:
    """The engine's tiers."""
    offload = engine.cached.offload
    assert offload is not None
    return offload


def settle(engine: Engine) -> None:
    """Wait until every final block has been stored, and everything else is over too."""
    offload = offload_of(engine)
    assert engine.broken is None
    while offload.is_busy:
        offload.settle()
        offload.stores.start()


class Gate:
    """Holds the copying thread back before it writes to the pool."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.reached = threading.Event()
        copies = offload_of(engine)._threads._copies
        to_device = copies.to_device

        def wait(slots: list[int], blocks: list[int], groups: list[int]) -> object:
            self.reached.set()
            assert self.open.wait(30)
            return to_device(slots, blocks, groups)

        monkeypatch.setattr(copies, "to_device", wait)


class _SteppedResults:
    """Results that come when they are let, or when somebody would wait for them."""

    def __init__(self, threads: SteppedThreads) -> None:
        self._threads = threads
        self._results: deque[Job] = deque()

    def put(self, job: Job) -> None:
        self._results.append(job)

    def empty(self) -> bool:
        return not self._results

    def get(self) -> Job:
        while not self._results:
            assert self._threads.run_one(), "somebody waits for nothing"
        return self._results.popleft()


class SteppedThreads(TierThreads):
    """Moves nothing by itself: `run_one` does the next part of a job, reads of files first."""

    def __init__(self, copies: BlockCopies, folder: BlockFolder | None) -> None:
        super().__init__(copies, folder)
        self.copying: deque[CopyJob] = deque()
        self.reading: deque[LoadJob] = deque()
        self.writing: deque[Job] = deque()
        self.done: Any = _SteppedResults(self)

    def start(self) -> None:
        """There is nothing to start."""

    def submit(self, job: Job) -> None:
        (self.copying if isinstance(job, StoreJob | LoadJob | LandJob) else self.writing).append(
            job
        )  # type: ignore[arg-type]

    def read(self, job: LoadJob) -> None:
        self.reading.append(job)

    def run_one(self, *, disk_first: bool = False) -> bool:
        """Whether there was anything to do."""
        on_disk = self.reading or self.writing
        if self.copying and not (disk_first and on_disk):
            self.run_copy(self.copying.popleft())
        elif on_disk:
            self.run_disk(on_disk.popleft())  # type: ignore[arg-type]
        else:
            return False
        return True

    def close(self) -> None:
        while self.run_one():
            pass
        if self._folder is not None:
            self._folder.close()
        self._copies.close()
