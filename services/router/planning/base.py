"""What the planner is told, and what it says. No I/O, and no clock of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from shared.identity import Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.identity import WorkerId

#: Share of answers that should meet the bounds.
ATTAINMENT = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What answers should meet. None: the workers' use is bounded instead."""

    max_ttft_ms: float | None = None
    max_itl_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of workers by what they are preferred for."""

    prefill: int
    decode: int

    @property
    def total(self) -> int:
        """Workers of both kinds."""
        return self.prefill + self.decode

    def of(self, role: Role) -> int:
        """Workers of one kind."""
        return self.prefill if role is Role.PREFILL else self.decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Between which numbers the planner may choose."""

    min_prefill: int = 1
    min_decode: int = 1
    #: Of both kinds together; a smaller sum of the least numbers never exceeds it.
    max_workers: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What clients ask for. Counted as requests arrive: a saturated cluster completes no more."""

    requests_per_s: float
    #: Means per request: prompt tokens, and those of them that are found in a cache.
    prompt_tokens: float
    held_tokens: float = 0.0
    output_tokens: float = 1.0
    #: Mean time that a worker computes a prompt, what is held left out, and the square of its
    #: coefficient of variation.
    prompt_ms: float = 0.0
    variation: float = 1.0
    #: Share of prompts whose own computation takes longer than the bound on the first token.
    hopeless: float = 0.0

    @property
    def prefill_work(self) -> float:
        """Prefill workers that would be busy all the time."""
        return self.requests_per_s * self.prompt_ms / 1000

    @property
    def context(self) -> float:
        """Mean tokens of a sequence while its answer is written."""
        return self.prompt_tokens + self.output_tokens / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """One live worker."""

    worker: WorkerId
    preference: Role
    #: Prompts sent there whose first token has not come [ms of computation].
    queue_ms: float = 0.0
    #: Sequences in its batch, and their tokens with those of prompts that will join them.
    num_running: int = 0
    num_held_tokens: int = 0
    #: Whether it takes orders to change its preference.
    movable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One interval."""

    now_s: float
    demand: Demand
    workers: Sequence[WorkerState] = ()
    #: Computation of prompts that wait in the routers [ms].
    waiting_ms: float = 0.0
    #: Requests that wait in the routers.
    num_waiting: int = 0

    def preferring(self, role: Role) -> list[WorkerState]:
        """Workers with this preference."""
        return [worker for worker in self.workers if worker.preference is role]

    @property
    def counts(self) -> Counts:
        """The workers there are."""
        return Counts(len(self.preferring(Role.PREFILL)), len(self.preferring(Role.DECODE)))

    @property
    def backlog_ms(self) -> float:
        """Computation of all prompts that have no first token."""
        return self.waiting_ms + sum(worker.queue_ms for worker in self.workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A change of one worker's preference."""

    worker: WorkerId
    to: Role
    reason: str


@dataclass(frozen=True, slots=True)
class Pressure:
    """Load of each kind of workers over what it bears within the bounds: above 1 it is too much."""

    prefill: float
    decode: float

    @property
    def most(self) -> float:
        """The larger one."""
        return max(self.prefill, self.decode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the planner says of one interval, with the numbers that led to it."""

    now_s: float
    demand: Demand
    #: Requests per second for which `wanted` is enough.
    planned_per_s: float
    present: Counts
    wanted: Counts
    #: With the workers there are.
    pressure: Pressure
    reason: str
    move: Move | None = None
    #: Pressure after the move.
    after: Pressure | None = None
    warnings: tuple[str, ...] = field(default=())


class Mover(Protocol):
    """Changes preferences of workers."""

    async def prefer(self, move: Move) -> None:
        """Have the worker prefer a kind of work, from its next step on. Safe to repeat.

        Raises:
            BatonError: the worker could not, or cannot be reached; nothing has changed.
        """
        ...
