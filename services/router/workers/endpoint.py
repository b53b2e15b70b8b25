"""One live worker: its registration, and the work that this router sent it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from services.router.workers.adapter_use import AdapterUse
from services.router.workers.timing.profile import WorkerProfile
from services.router.workers.timing.work import Work

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.directory.base import WorkerLoad, WorkerRecord
    from shared.identity import Role
    from shared.pooling.facts import PoolingFacts


@dataclass(frozen=True, slots=True)
class OfferedVectors:
    """The vectors that a worker makes."""

    facts: PoolingFacts
    #: Whether it makes nothing else.
    is_only: bool


@dataclass(frozen=True, slots=True)
class WorkerSoftware:
    """What a worker reports of itself; empty before the first check."""

    version: str = ""
    #: Version of the contract.
    protocol_minor: int = 0
    #: None: it makes none.
    vectors: OfferedVectors | None = None


@dataclass(slots=True, eq=False)
class Endpoint:
    """A worker. `work` is its part of the router's own book, so it is never out of date."""

    record: WorkerRecord
    load: WorkerLoad
    #: The worker answered the canary, and no request has failed there since.
    ready: bool = False
    software: WorkerSoftware = field(default_factory=WorkerSoftware)
    #: Reason why the worker must not be used although it works; empty if it may be used.
    refusal: str = ""
    #: Number of visits in a row without an answer.
    num_missed: int = 0
    #: Whether it may compute the rest of a prompt whose beginning comes from elsewhere; its answers
    #: show when its model has windows or states, with which it cannot.
    splits: bool = True
    #: The worker refused a request because it drains; a later heartbeat will report it, too.
    refused: bool = False
    work: Work = field(default_factory=Work)
    profile: WorkerProfile = field(default_factory=WorkerProfile)
    adapters: AdapterUse = field(default_factory=AdapterUse)
    #: Whether it has reported its load; one that has just joined has not.
    has_reported: bool = False
    #: time.monotonic() of its last heartbeat in the directory.
    heard_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.adapters.report(self.load)

    def report(self, load: WorkerLoad) -> None:
        """Take what the worker reports with a heartbeat."""
        self.load, self.heard_s = load, time.monotonic()
        self.has_reported = True
        self.adapters.report(load)

    @property
    def name(self) -> str:
        """The worker's name."""
        return self.record.worker.name

    @property
    def preference(self) -> Role:
        """The role for which it is preferred, as of its last heartbeat; one that it serves."""
        wanted = self.load.preference
        return wanted if wanted is not None and self.serves(wanted) else self.record.role

    def serves(self, role: Role) -> bool:
        """Return whether the worker has the service of the role."""
        return role in self.record.served

    def num_running(self, num_sequences: float) -> float:
        """Return how many of its sequences are in a step; the others wait for a place."""
        most = self.record.max_num_seqs
        return min(num_sequences, most) if most else num_sequences

    def step_ms(self, num_sequences: float, num_tokens: float) -> float:
        """Return the time of a step, of those of its sequences that have a place.

        `num_tokens`: of all sequences.
        """
        part = self.num_running(num_sequences) / num_sequences if num_sequences else 1.0
        return self.profile.itl_ms(part * num_sequences, part * num_tokens)

    @property
    def draining(self) -> bool:
        """Whether it takes no new work."""
        return self.refused or self.load.draining

    @property
    def usable(self) -> bool:
        """Whether new work may be sent to the worker."""
        return self.ready and not self.draining and not self.refusal

    def __str__(self) -> str:
        return f"{self.record.worker} at {self.record.address}"


def preferring(endpoints: Iterable[Endpoint], role: Role) -> list[Endpoint]:
    """Return those that prefer the role."""
    return [endpoint for endpoint in endpoints if endpoint.preference is role]
