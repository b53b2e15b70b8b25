"""What a fault is, and what it finds when it comes."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.faults.system.cluster import REDIS

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from benchmarks.faults.clients.load import Load
    from benchmarks.faults.clients.oracle import Oracle
    from benchmarks.faults.states import Victim
    from benchmarks.faults.system.cluster import Cluster


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
    #: Two processes that the fault is between.
    pair: tuple[str, str] = ("", "")
    #: Their incarnations, and the keys of their blocks in the directory, when it came.
    lives: list[str] = field(default_factory=list)
    blocks: set[str] = field(default_factory=set)
    #: When a fault that lasts has begun; None: it is over.
    since_s: float | None = None

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
    #: It happens to a cluster whose gRPC and HTTP are encrypted.
    encrypted = False
    #: The client itself gives up: its request needs no answer.
    cancels = False
    #: `prepare` starts workers again, and does nothing the next time: a soak calls it for all its
    #: faults before there is any load, which would find no worker.
    replaces_workers = False

    def impossible(self, scene: Scene) -> str | None:
        """Why it cannot be done on this machine."""
        return None

    async def prepare(self, scene: Scene) -> None:  # noqa: B027 most have nothing to prepare
        """Before the victim is sent."""

    @abstractmethod
    async def inject(self, scene: Scene) -> None:
        """Strike now. What takes time is started with `Scene.start`."""

    async def heal(self, scene: Scene) -> None:  # noqa: B027 some heal by themselves
        """After the outcome, while requests run: the fault ends, and dead processes come back."""

    async def restore(self, scene: Scene) -> None:  # noqa: B027 few have anything to restore
        """When nothing runs: what `prepare` or the fault has replaced is made what it was."""

    async def leave(self, scene: Scene) -> None:  # noqa: B027 few leave anything behind
        """When all has been counted; the cluster is ready again afterwards."""

    def touched(self, scene: Scene) -> set[str]:
        """Processes whose streams are affected; all others must not notice."""
        return {scene.target}


class Lasting(Fault):
    """A fault that lasts until the victim has its outcome, so its end saves no request."""

    is_crash = True
    #: At least so long: others must get over it, too. At most so long: nothing else would end.
    least_s = 8.0
    most_s = 20.0

    @abstractmethod
    def begin(self, scene: Scene) -> None:
        """From now on."""

    @abstractmethod
    def end(self, scene: Scene) -> None:
        """No longer."""

    async def inject(self, scene: Scene) -> None:
        """See `Fault`."""
        self.begin(scene)
        scene.since_s = time.monotonic()
        scene.start(self._at_last(scene))

    async def heal(self, scene: Scene) -> None:
        """See `Fault`."""
        if scene.since_s is not None:
            await asyncio.sleep(scene.since_s + self.least_s - time.monotonic())
        for task in scene.tasks:
            task.cancel()
        await asyncio.gather(*scene.tasks, return_exceptions=True)
        scene.tasks.clear()
        self._end_once(scene)

    async def _at_last(self, scene: Scene) -> None:
        await asyncio.sleep(self.most_s)
        self._end_once(scene)

    def _end_once(self, scene: Scene) -> None:
        if scene.since_s is not None:
            scene.since_s = None
            self.end(scene)
