"""What a fault is, and what it finds when it comes."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.faults.cluster import REDIS

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from benchmarks.faults.cluster import Cluster
    from benchmarks.faults.load import Load
    from benchmarks.faults.oracle import Oracle
    from benchmarks.faults.states import Victim


@dataclass(slots=True)
class Scene:
    """One cell while it runs. What a fault finds wrong by itself goes into `problems`."""

    cluster: Cluster
    load: Load
    oracle: Oracle
    victim: Victim | None = None
    #: The process that the fault is about, chosen when it strikes.
    target: str = ""
    problems: list[str] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def choose(self, role: str) -> str:
        """The process of a role that has the victim; the first one if none has it yet."""
        if role == REDIS:
            return REDIS
        found = self.victim.worker(role) if self.victim is not None else None
        return found or self.cluster.of_role(role)[0]

    def start(self, work: Coroutine[object, object, None]) -> None:
        """Something of the fault that goes on beside the victim; `finish` waits for it."""
        self.tasks.append(asyncio.create_task(work))

    async def finish(self) -> None:
        """Wait for what was started."""
        for result in await asyncio.gather(*self.tasks, return_exceptions=True):
            if isinstance(result, BaseException):
                self.problems.append(f"{type(result).__name__}: {result}")
        self.tasks.clear()


class Fault(ABC):
    """One kind of fault. It belongs to no cell: what it must remember is in the scene."""

    name: str
    #: A process ends, or stops: time to outcome is bounded by seconds and not by a deadline.
    is_crash = False
    #: The client itself gives up: its request needs no answer.
    cancels = False

    def impossible(self, scene: Scene) -> str | None:
        """Why it cannot be done on this machine."""
        return None

    async def prepare(self, scene: Scene) -> None:  # noqa: B027 most have nothing to prepare
        """Before the victim is sent."""

    @abstractmethod
    async def inject(self, scene: Scene) -> None:
        """Strike now. What takes time is started with `Scene.start`."""

    async def heal(self, scene: Scene) -> None:  # noqa: B027 some heal by themselves
        """After the outcome, while requests still run: the fault ends, who is dead comes back."""

    async def restore(self, scene: Scene) -> None:  # noqa: B027 few have anything to restore
        """When nothing runs: what `prepare` or the fault has replaced is made what it was."""

    def touched(self, scene: Scene) -> set[str]:
        """Processes whose streams are affected; all others must not notice."""
        return {scene.target}
