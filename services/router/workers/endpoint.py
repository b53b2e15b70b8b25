"""One live worker as this router sees it: what it registered, and what we have sent it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from services.router.workers.profile import WorkerProfile
from services.router.workers.work import Work

if TYPE_CHECKING:
    from shared.directory.base import WorkerLoad, WorkerRecord


@dataclass(frozen=True, slots=True)
class WorkerSoftware:
    """What a worker runs, as it said itself; nothing before it was asked."""

    version: str = ""
    #: Of the contract that it speaks.
    protocol_minor: int = 0


@dataclass(slots=True, eq=False)
class Endpoint:
    """A worker. `work` is its page of the router's own book, so it is never out of date."""

    record: WorkerRecord
    load: WorkerLoad
    #: It answered the canary, and nothing has failed since.
    ready: bool = False
    software: WorkerSoftware = field(default_factory=WorkerSoftware)
    #: Why it must not be used although it works; empty if it may.
    refusal: str = ""
    #: Visits in a row that it did not answer.
    num_missed: int = 0
    #: It refused a request because it is draining; its heartbeat will say so as well.
    refused: bool = False
    work: Work = field(default_factory=Work)
    profile: WorkerProfile = field(default_factory=WorkerProfile)
    #: time.monotonic() of its last word in the directory.
    heard_s: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        """The worker's name."""
        return self.record.worker.name

    @property
    def draining(self) -> bool:
        """Whether it takes no new work."""
        return self.refused or self.load.draining

    @property
    def usable(self) -> bool:
        """Whether new work may be sent there."""
        return self.ready and not self.draining and not self.refusal

    def __str__(self) -> str:
        return f"{self.record.worker} at {self.record.address}"
